#!/usr/bin/env bash
# Prints what a header promises to programs that are already compiled, one line each, in the words of golden.c: every constant, every
# struct with its size and alignment, every field with its offset and size, every function and function type. The version number is
# no promise, nor are the names of parameters. Fails when a struct has padding.
#
# usage: tests/abi/pins.sh HEADER
set -euo pipefail
export LC_ALL=C
header=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The code alone: a macro, or a piece that ends with a semicolon or a brace, on each line; parameters without their names.
sed '/^#include/d' "$header" | gcc -E -P -dD -x c - | grep -v '^#define __' > "$work/code"
grep -v '^#' "$work/code" | tr '\n' ' ' | sed -E 's/ +/ /g; s/([;{}]) ?/\1\n/g' |
    sed -E '/\(/ {s/([ *])[a-z0-9_]+([,)])([^(]|$)/\1\2\3/g; s/ ([,)])/\1/g; s/;$//}' > "$work/pieces"

cp "$header" "$work/pinned.h"
cat > "$work/pins.c" << 'PREAMBLE'
#include "pinned.h"
#include <stdio.h>
#include <stdlib.h>

static size_t end;

/* A struct begins, a field follows, and the struct ends without a gap. */
static void at(const char *type, const char *field, size_t offset)
{
    if (offset != end) {
        fprintf(stderr, "abi: padding before %s of %s: put a reserved field there\n", field, type);
        exit(1);
    }
}

#define STRUCT(kind, type) end = 0; printf(kind "(" #type ", %zu, %zu)\n", sizeof(type), (size_t)_Alignof(type));
#define FIELD(type, field) at(#type, #field, offsetof(type, field)); end += sizeof(((type *)0)->field); \
    printf("FIELD(" #type ", " #field ", %zu, %zu)\n", offsetof(type, field), sizeof(((type *)0)->field));
#define END(type) at(#type, "the end", sizeof(type));

int main(void)
{
PREAMBLE
sed -nE 's/^#define (SEGNO_[A-Z0-9_]+) (.+)$/puts("CONSTANT(\1, \2)");/p' "$work/code" | grep -v SEGNO_VERSION_NUMBER >> "$work/pins.c"
awk '
    /^typedef struct [a-z_]+ \{$/ { struct = $3; count = 0; next }
    struct && /^\}$/ {
        printf "STRUCT(\"%s\", %s)\n", fields[0] == "struct_size" ? "GROWING" : "FIXED", struct
        for (i = 0; i < count; i++) printf "FIELD(%s, %s)\n", struct, fields[i]
        printf "END(%s)\n", struct
        struct = ""
        next
    }
    struct { sub(/(\[[0-9]+\])?;$/, ""); sub(/.*[ *]/, ""); fields[count++] = $0; next }
    /^typedef .*\(\*segno_[a-z_]+\)\(/ || /^typedef (struct )?[a-z0-9_]+ segno_[a-z_]+;$/ { sub(/;$/, ""); printf "puts(\"TYPE(%s)\");\n", $0; next }
    /^[a-z].*segno_[a-z_]+\(.*\)$/ { printf "puts(\"FUNCTION(%s)\");\n", $0; next }
    !/^segno_[a-z_]+;$/ && !/^ ?$/ { print "abi: not understood: " $0 > "/dev/stderr"; exit 1 }
    END { print "return 0;\n}" }
' "$work/pieces" >> "$work/pins.c"
gcc -std=c11 -Wall -Wextra -Werror "$work/pins.c" -o "$work/pins"
"$work/pins"
