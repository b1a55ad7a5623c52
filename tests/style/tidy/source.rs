//! A source file as the rules see it: code without comments and strings, tokens, and blocks in braces.
//!
//! A scanner, not a parser: it knows what starts and ends a comment or a literal, and reads of the rest only words, `::` and
//! single characters. That is enough for the rules and stays right under macros. Rust, C, C++ and CUDA are close enough.

/// One file.
pub struct Source {
    /// Path from the root of the tree, with `/`.
    pub path: String,
    /// The file as it is.
    pub text: String,
    code: String,
}

/// A word, `::`, or one character of code.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token<'a> {
    pub text: &'a str,
    /// Counted from 1.
    pub line: usize,
}

/// What a pair of braces belongs to.
#[derive(Debug, PartialEq)]
pub enum Kind {
    Function(String),
    Module(String),
    TraitImpl,
    Other,
}

/// A pair of braces.
#[derive(Debug)]
pub struct Block {
    pub kind: Kind,
    /// Index of the first token of the block's head, of `{` and of `}`.
    pub head: usize,
    pub open: usize,
    pub close: usize,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned(), code: without_comments_and_strings(text) }
    }

    pub fn has_extension(&self, extensions: &[&str]) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, extension)| extensions.contains(&extension))
    }

    /// A finding of a rule at a line of this file.
    pub fn finding(&self, line: usize, problem: &str) -> String {
        format!("{}:{line}: {problem}", self.path)
    }

    /// The lines of [`Source::text`] without comments and literals.
    pub fn code_lines(&self) -> Vec<&str> {
        self.code.lines().collect()
    }

    pub fn tokens(&self) -> Vec<Token<'_>> {
        let mut tokens = Vec::new();
        for (index, line) in self.code.lines().enumerate() {
            let mut rest = line.trim_start();
            while let Some(first) = rest.chars().next() {
                let length = match first {
                    _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                    ':' if rest.starts_with("::") => 2,
                    _ => first.len_utf8(),
                };
                tokens.push(Token { text: &rest[..length], line: index + 1 });
                rest = rest[length..].trim_start();
            }
        }
        tokens
    }
}

/// All pairs of braces, inner ones after the outer one.
pub fn blocks(tokens: &[Token]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    // What is open: `(` and `[` as `None`, braces with their block and the head of the statement around them.
    let mut open: Vec<Option<(usize, usize)>> = Vec::new();
    let mut head = 0;
    for (index, token) in tokens.iter().enumerate() {
        match token.text {
            "(" | "[" => open.push(None),
            ")" | "]" => drop(open.pop()),
            "{" => {
                open.push(Some((blocks.len(), head)));
                blocks.push(Block { kind: kind(&tokens[head..index]), head, open: index, close: tokens.len() - 1 });
                head = index + 1;
            }
            "}" => {
                if let Some(Some((block, outer_head))) = open.pop() {
                    blocks[block].close = index;
                    // Braces inside brackets are part of a statement that goes on.
                    head = if matches!(open.last(), Some(None)) { outer_head } else { index + 1 };
                }
            }
            ";" if !matches!(open.last(), Some(None)) => head = index + 1,
            _ => {}
        }
    }
    blocks
}

/// The innermost block around a token, of those that `wanted` admits.
pub fn innermost(blocks: &[Block], token: usize, wanted: impl Fn(&Kind) -> bool) -> Option<&Block> {
    blocks.iter().rfind(|block| block.open < token && token < block.close && wanted(&block.kind))
}

fn kind(head: &[Token]) -> Kind {
    let named = |keyword: &str| {
        let pair = head.windows(2).find(|pair| pair[0].text == keyword && is_name(pair[1].text));
        pair.map(|pair| pair[1].text.to_owned())
    };
    if let Some(name) = named("fn") {
        return Kind::Function(name);
    }
    if let Some(name) = named("mod") {
        return Kind::Module(name);
    }
    // `for<'a>` in a bound makes no trait implementation.
    let of_a_trait = head.windows(2).any(|pair| pair[0].text == "for" && pair[1].text != "<");
    if of_a_trait && head.iter().any(|token| token.text == "impl") { Kind::TraitImpl } else { Kind::Other }
}

pub fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The text with every comment and every string or character literal replaced by blanks; lines stay where they are.
fn without_comments_and_strings(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    let mut after_word = false;
    while let Some(first) = rest.chars().next() {
        let skipped = if after_word && is_word(first) { 0 } else { literal_or_comment(rest) };
        if skipped == 0 {
            code.push(first);
            after_word = is_word(first);
            rest = &rest[first.len_utf8()..];
        } else {
            code.extend(rest[..skipped].chars().map(|c| if c == '\n' { c } else { ' ' }));
            after_word = false;
            rest = &rest[skipped..];
        }
    }
    code
}

/// Bytes of the comment or literal that `rest` begins with; 0 if it begins with neither.
fn literal_or_comment(rest: &str) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    if rest.starts_with('\'') {
        return character(rest);
    }
    let prefix = rest.find(|c| !"bcr".contains(c)).unwrap_or(rest.len());
    let hashes = rest[prefix..].bytes().take_while(|&byte| byte == b'#').count();
    let raw = rest[..prefix].ends_with('r');
    match rest[prefix + hashes..].starts_with('"') && prefix <= 2 && (raw || hashes == 0) {
        true if raw => raw_string(rest, prefix + hashes + 1, hashes),
        true => string(rest, prefix + 1),
        false if rest.starts_with("b'") => 1 + character(&rest[1..]),
        false => 0,
    }
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        let step = match &rest.as_bytes()[at..] {
            [b'/', b'*', ..] => (2, 1),
            [b'*', b'/', ..] => (2, -1),
            _ => (1, 0),
        };
        at += step.0;
        depth += step.1;
        if depth == 0 {
            break;
        }
    }
    at
}

/// A character literal; a lifetime is none.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        // The character after the backslash may itself be a quote.
        (Some((_, '\\')), Some((at, c))) => {
            let after = at + c.len_utf8();
            rest[after..].find('\'').map_or(rest.len(), |end| after + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

fn string(rest: &str, start: usize) -> usize {
    let mut escaped = false;
    for (at, byte) in rest.bytes().enumerate().skip(start) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

fn raw_string(rest: &str, start: usize, hashes: usize) -> usize {
    let end = format!("\"{}", "#".repeat(hashes));
    rest[start..].find(&end).map_or(rest.len(), |at| start + at + end.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        Source::new("x.rs", text).tokens().iter().map(|token| token.text.to_owned()).collect()
    }

    #[test]
    fn comments_are_no_code() {
        assert_eq!(words("a// b\nc /* d /* e */ f */ g /// h"), ["a", "c", "g"]);
        assert_eq!(words("a / b / *c"), ["a", "/", "b", "/", "*", "c"]);
        assert_eq!(words("a /* never closed"), ["a"]);
    }

    #[test]
    fn strings_are_no_code() {
        assert_eq!(words(r#"a "b // \" c" d"#), ["a", "d"]);
        assert_eq!(words(r##"a(r#"b " c"#) d r"e\" f br"g" h b"i\"" j c"k""##), ["a", "(", ")", "d", "f", "h", "j"]);
        assert_eq!(words("a \"b\nc\" d \"never closed"), ["a", "d"]);
        assert_eq!(words("macro!{x\"y\"}"), ["macro", "!", "{", "x", "}"]);
    }

    #[test]
    fn characters_are_no_code_and_lifetimes_are() {
        assert_eq!(words(r"a '{' b '\'' c '\\' d '\u{7b}' e b'{' f 'ß' g"), ["a", "b", "c", "d", "e", "f", "g"]);
        assert_eq!(words("&'a str, 'b: loop"), ["&", "'", "a", "str", ",", "'", "b", ":", "loop"]);
        assert_eq!(words("r#type b crab"), ["r", "#", "type", "b", "crab"]);
    }

    #[test]
    fn tokens_know_their_lines() {
        let source = Source::new("x.rs", "a /* b\n */ c::d\n\"e\nf\" g");
        let lines: Vec<(&str, usize)> = source.tokens().iter().map(|token| (token.text, token.line)).collect();
        assert_eq!(lines, [("a", 1), ("c", 2), ("::", 2), ("d", 2), ("g", 4)]);
    }

    #[test]
    fn blocks_know_what_they_belong_to() {
        let text = "mod m { impl T for [u8; 4] { fn f(a: [u8; 2], g: fn(u8)) -> B { if a { } call(|x| { x; }, { y }); } } } \
                    struct S { f: fn(u8) } impl<'a> S where F: for<'b> Fn(&'b u8) { }";
        let source = Source::new("x.rs", text);
        let tokens = source.tokens();
        let kinds: Vec<Kind> = blocks(&tokens).into_iter().map(|block| block.kind).collect();
        let expected = [
            Kind::Module("m".into()),
            Kind::TraitImpl,
            Kind::Function("f".into()),
            Kind::Other,
            Kind::Other,
            Kind::Other,
            Kind::Other,
            Kind::Other,
        ];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn the_innermost_block_is_found() {
        let source = Source::new("x.rs", "mod a { mod b { x } y } z");
        let tokens = source.tokens();
        let blocks = blocks(&tokens);
        let module = |word: &str| {
            let at = tokens.iter().position(|token| token.text == word).unwrap();
            innermost(&blocks, at, |kind| matches!(kind, Kind::Module(_))).map(|block| tokens[block.open - 1].text)
        };
        assert_eq!([module("x"), module("y"), module("z")], [Some("b"), Some("a"), None]);
    }
}
