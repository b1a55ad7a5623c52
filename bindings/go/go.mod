module segno

go 1.24
