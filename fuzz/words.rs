//! Writes the words of chat templates as a dictionary of libFuzzer: all operations, and what the parser looks for.

use segno::text::chat::operations::operations;

const SYNTAX: &str = "{{ }} {% %} {# #} {%- -%} {%+ ( ) [ ] { } : , . | = 'a' \"b\" %s {} [::-1] * ** 99999999999 \
    170141183460469231731687303715884105727 1e300 true none for in if elif else endif endfor set endset macro endmacro call endcall filter \
    endfilter with endwith raw endraw block endblock do break continue recursive autoescape generation endgeneration is not and or loop. \
    messages tools varargs kwargs caller() ns. attribute= default= first= width= indent=";

fn main() {
    let names = operations().into_iter().map(|(_, name)| name);
    for word in names.chain(SYNTAX.split_whitespace()) {
        println!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""));
    }
}
