module examples

go 1.24

require segno v0.0.0

replace segno => ../../bindings/go
