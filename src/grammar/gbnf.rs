//! GBNF, the notation of llama.cpp (its `grammars/README.md`), as Lark.
//!
//! GBNF describes texts character by character; Lark has terminals, which are regular and found as far as they reach, and rules of them. What is
//! regular here, all that leads back to no rule, becomes terminals, and neighbours among the items of a rule become one. So a text that could be
//! read in two ways where terminals meet may be refused; none is let through that the grammar does not describe.

use super::measure;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::fmt::Write;

/// Deepest nesting of parentheses.
const NESTING: usize = 200;
/// Most repetitions behind one item, the end of them included.
const REPETITIONS: usize = 4;
/// The highest count of a repetition.
const MOST: usize = 10_000;

/// A piece of a rule.
#[derive(Clone, Debug)]
enum Node {
    /// A regular expression, without slashes.
    Regex(String),
    /// The rule of this number.
    Rule(usize),
    /// A special token, as Lark writes it.
    Token(String),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    /// Least and most repetitions.
    Repeat(Box<Node>, usize, Option<usize>),
}

/// The rules of a grammar by their numbers.
struct Rules<'a> {
    names: Vec<&'a str>,
    numbers: HashMap<&'a str, usize>,
    /// What each describes, and the line that said so or first named it.
    bodies: Vec<(Option<Node>, usize)>,
}

/// The Lark grammar of the GBNF grammar `text`.
pub fn to_lark(text: &str) -> Result<String> {
    measure::repetitions(text, "the grammar")?;
    let rules = Parser { rest: text, line: 1, depth: 0 }.rules()?;
    let root = rules.numbers.get("root").copied();
    let root = root.filter(|&root| rules.bodies[root].0.is_some());
    let root = root.ok_or_else(|| Error::Grammar("the grammar has no rule `root`".into()))?;
    let unknown = rules.bodies.iter().position(|(body, _)| body.is_none());
    if let Some(rule) = unknown {
        return Err(wrong(rules.bodies[rule].1, &format!("there is no rule `{}`", rules.names[rule])));
    }
    let bodies: Vec<Node> = rules.bodies.into_iter().filter_map(|(body, _)| body).collect();
    Ok(Writer { regular: regular(&bodies), out: String::new(), merged: 0 }.grammar(&bodies, root))
}

fn wrong(line: usize, cause: &str) -> Error {
    Error::Grammar(format!("the grammar, line {line}: {cause}"))
}

struct Parser<'a> {
    rest: &'a str,
    line: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn rules(mut self) -> Result<Rules<'a>> {
        let mut rules = Rules { names: Vec::new(), numbers: HashMap::new(), bodies: Vec::new() };
        self.skip(true);
        while !self.rest.is_empty() {
            let line = self.line;
            let name = self.name().ok_or_else(|| wrong(line, "a rule begins with its name"))?;
            let number = rules.number(name, line);
            self.skip(false);
            if !self.take("::=") {
                return Err(wrong(line, &format!("`::=` is missing behind `{name}`")));
            }
            self.skip(true);
            let body = self.choice(&mut rules)?;
            if rules.bodies[number].0.replace(body).is_some() {
                return Err(wrong(line, &format!("there is another rule `{name}`")));
            }
            self.skip(false);
            if !self.rest.is_empty() && !self.rest.starts_with(['\n', '\r']) {
                return Err(self.unexpected());
            }
            self.skip(true);
        }
        Ok(rules)
    }

    fn choice(&mut self, rules: &mut Rules<'a>) -> Result<Node> {
        let mut choices = vec![self.sequence(rules)?];
        while self.take("|") {
            self.skip(true);
            choices.push(self.sequence(rules)?);
        }
        Ok(if choices.len() == 1 { choices.swap_remove(0) } else { Node::Choice(choices) })
    }

    fn sequence(&mut self, rules: &mut Rules<'a>) -> Result<Node> {
        let mut items = Vec::new();
        while let Some(item) = self.item(rules)? {
            self.skip(self.depth > 0);
            let item = self.repeated(item)?;
            items.push(item);
        }
        Ok(if items.len() == 1 { items.swap_remove(0) } else { Node::Sequence(items) })
    }

    fn item(&mut self, rules: &mut Rules<'a>) -> Result<Option<Node>> {
        let line = self.line;
        Ok(Some(match self.rest.bytes().next() {
            Some(b'"') => self.literal()?,
            Some(b'[') => self.class()?,
            Some(b'.') => {
                self.advance(1);
                Node::Regex("(?s:.)".into())
            }
            Some(b'<') => {
                let end = self.rest.find(['>', '\n']).filter(|&end| self.rest.as_bytes()[end] == b'>');
                let end = end.ok_or_else(|| wrong(line, "a token has no `>`"))?;
                Node::Token(self.advance(end + 1).into())
            }
            Some(b'(') => {
                self.depth += 1;
                if self.depth > NESTING {
                    return Err(wrong(line, &format!("more than {NESTING} parentheses within each other")));
                }
                self.advance(1);
                self.skip(true);
                let inner = self.choice(rules)?;
                self.depth -= 1;
                if !self.take(")") {
                    return Err(wrong(line, "a parenthesis is not closed"));
                }
                inner
            }
            _ => match self.name() {
                Some(name) => Node::Rule(rules.number(name, line)),
                None => return Ok(None),
            },
        }))
    }

    /// `item` with the repetitions that follow it.
    fn repeated(&mut self, mut item: Node) -> Result<Node> {
        for _ in 0..REPETITIONS {
            let (least, most) = match self.rest.bytes().next() {
                Some(b'*') => (0, None),
                Some(b'+') => (1, None),
                Some(b'?') => (0, Some(1)),
                Some(b'{') => self.counts()?,
                _ => return Ok(item),
            };
            self.advance(1);
            self.skip(self.depth > 0);
            item = Node::Repeat(Box::new(item), least, most);
        }
        Err(wrong(self.line, "repetitions of repetitions of repetitions"))
    }

    /// The counts in braces; stops at the closing one.
    fn counts(&mut self) -> Result<(usize, Option<usize>)> {
        let refuse = || wrong(self.line, &format!("counts are `{{m}}`, `{{m,}}` or `{{m,n}}`, at most {MOST}"));
        let end = self.rest.find('}').ok_or_else(refuse)?;
        let count = |text: &str| text.trim().parse::<usize>().ok().filter(|&count| count <= MOST).ok_or_else(refuse);
        let counts = match self.rest[1..end].split_once(',') {
            None => count(&self.rest[1..end]).map(|count| (count, Some(count)))?,
            Some((least, "")) => (count(least)?, None),
            Some((least, most)) => (count(least)?, Some(count(most)?)),
        };
        if counts.1.is_some_and(|most| most < counts.0) {
            return Err(refuse());
        }
        self.advance(end);
        Ok(counts)
    }

    fn literal(&mut self) -> Result<Node> {
        let line = self.line;
        self.advance(1);
        let mut regex = String::new();
        while !self.take("\"") {
            let c = self.character().ok_or_else(|| wrong(line, "a text in quotes is not closed"))?;
            write_character(&mut regex, c);
        }
        Ok(if regex.is_empty() { Node::Sequence(Vec::new()) } else { Node::Regex(regex) })
    }

    fn class(&mut self) -> Result<Node> {
        let line = self.line;
        self.advance(1);
        let mut regex = String::from(if self.take("^") { "[^" } else { "[" });
        let empty = regex.len();
        let open = || wrong(line, "characters in brackets are not closed");
        while !self.take("]") {
            let first = self.character().ok_or_else(open)?;
            write_character(&mut regex, first);
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.advance(1);
                let last = self.character().ok_or_else(open)?;
                if last < first {
                    return Err(wrong(line, &format!("there are no characters from `{first}` to `{last}`")));
                }
                regex.push('-');
                write_character(&mut regex, last);
            }
        }
        if regex.len() == empty {
            return Err(wrong(line, "brackets without characters"));
        }
        regex.push(']');
        Ok(Node::Regex(regex))
    }

    /// A character of a text or class, an escape undone.
    fn character(&mut self) -> Option<char> {
        let c = self.rest.chars().next().filter(|&c| c != '\n')?;
        self.advance(c.len_utf8());
        if c != '\\' {
            return Some(c);
        }
        let c = self.rest.chars().next()?;
        self.advance(c.len_utf8());
        let digits = match c {
            't' => return Some('\t'),
            'r' => return Some('\r'),
            'n' => return Some('\n'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            '"' | '\\' | '[' | ']' | '-' | '^' => return Some(c),
            _ => return None,
        };
        let code = u32::from_str_radix(self.rest.get(..digits)?, 16).ok()?;
        self.advance(digits);
        char::from_u32(code)
    }

    fn name(&mut self) -> Option<&'a str> {
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'));
        let name = &self.rest[..end.unwrap_or(self.rest.len())];
        self.advance(name.len());
        Some(name).filter(|name| !name.is_empty())
    }

    /// Skips white space and comments, ends of lines too if `lines`.
    fn skip(&mut self, lines: bool) {
        loop {
            match self.rest.bytes().next() {
                Some(b' ' | b'\t') => self.advance(1),
                Some(b'\n' | b'\r') if lines => self.advance(1),
                Some(b'#') => self.advance(self.rest.find('\n').unwrap_or(self.rest.len())),
                _ => return,
            };
        }
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.rest.starts_with(text);
        if found {
            self.advance(text.len());
        }
        found
    }

    fn advance(&mut self, bytes: usize) -> &'a str {
        let (passed, rest) = self.rest.split_at(bytes);
        self.line += passed.bytes().filter(|&byte| byte == b'\n').count();
        self.rest = rest;
        passed
    }

    fn unexpected(&self) -> Error {
        let found: String = self.rest.chars().take(1).collect();
        wrong(self.line, &format!("`{found}` is not expected here"))
    }
}

impl<'a> Rules<'a> {
    /// The number of the rule `name`, which `line` names.
    fn number(&mut self, name: &'a str, line: usize) -> usize {
        *self.numbers.entry(name).or_insert_with(|| {
            self.names.push(name);
            self.bodies.push((None, line));
            self.names.len() - 1
        })
    }
}

/// One character in a regular expression between slashes.
fn write_character(regex: &mut String, c: char) {
    if c.is_ascii_alphanumeric() {
        regex.push(c);
    } else {
        // Writing to a text does not fail.
        let _ = write!(regex, "\\x{{{:x}}}", c as u32);
    }
}

/// Calls `visit` with the rules that a node names, and says whether it names a token.
fn named(node: &Node, visit: &mut impl FnMut(usize)) -> bool {
    match node {
        Node::Regex(_) => false,
        Node::Token(_) => true,
        Node::Rule(rule) => {
            visit(*rule);
            false
        }
        Node::Sequence(nodes) | Node::Choice(nodes) => {
            nodes.iter().fold(false, |found, node| found | named(node, visit))
        }
        Node::Repeat(node, ..) => named(node, visit),
    }
}

/// Which rules lead back to none, and name no token: those whose every rule is so, found from the ends on.
fn regular(bodies: &[Node]) -> Vec<bool> {
    let mut regular = vec![false; bodies.len()];
    let mut users = vec![Vec::new(); bodies.len()];
    let mut missing = vec![0; bodies.len()];
    for (rule, body) in bodies.iter().enumerate() {
        let mut names = Vec::new();
        let has_token = named(body, &mut |named| names.push(named));
        missing[rule] = names.len() + usize::from(has_token);
        names.into_iter().for_each(|name| users[name].push(rule));
    }
    let mut known: Vec<usize> = (0..bodies.len()).filter(|&rule| missing[rule] == 0).collect();
    while let Some(rule) = known.pop() {
        regular[rule] = true;
        for &user in &users[rule] {
            missing[user] -= 1;
            if missing[user] == 0 {
                known.push(user);
            }
        }
    }
    regular
}

struct Writer {
    regular: Vec<bool>,
    out: String,
    /// Terminals made of neighbours.
    merged: usize,
}

impl Writer {
    fn grammar(mut self, bodies: &[Node], root: usize) -> String {
        let start = self.reference(root);
        self.line("start", &start);
        for (rule, body) in bodies.iter().enumerate() {
            let name = self.reference(rule);
            let text = if self.regular[rule] { self.terminal(body) } else { self.rule(body) };
            self.line(&name, &text);
        }
        self.out
    }

    fn line(&mut self, name: &str, text: &str) {
        let _ = writeln!(self.out, "{name}: {}", if text.is_empty() { "\"\"" } else { text });
    }

    fn reference(&self, rule: usize) -> String {
        if self.regular[rule] { format!("T{rule}") } else { format!("r{rule}") }
    }

    fn is_regular(&self, node: &Node) -> bool {
        let mut all = true;
        !named(node, &mut |rule| all &= self.regular[rule]) && all
    }

    /// A regular node as the body of a terminal.
    fn terminal(&self, node: &Node) -> String {
        match node {
            Node::Regex(regex) => format!("/{regex}/"),
            Node::Token(token) => token.clone(),
            Node::Rule(rule) => self.reference(*rule),
            Node::Sequence(nodes) if nodes.is_empty() => "\"\"".into(),
            Node::Sequence(nodes) => joined(nodes.iter().map(|node| self.terminal(node)), " "),
            Node::Choice(nodes) => joined(nodes.iter().map(|node| self.terminal(node)), " | "),
            Node::Repeat(node, least, most) => repeated(&self.terminal(node), *least, *most),
        }
    }

    /// A node as the body of a rule: what is regular in it becomes terminals of their own.
    fn rule(&mut self, node: &Node) -> String {
        if self.is_regular(node) {
            return self.merge(std::slice::from_ref(node));
        }
        match node {
            Node::Regex(_) | Node::Token(_) | Node::Rule(_) => self.terminal(node),
            Node::Choice(nodes) => joined(nodes.iter().map(|node| self.rule(node)), " | "),
            Node::Repeat(node, least, most) => repeated(&self.rule(node), *least, *most),
            Node::Sequence(nodes) => {
                let mut items = Vec::new();
                let runs = nodes.chunk_by(|a, b| self.is_regular(a) && self.is_regular(b)).map(<[Node]>::to_vec);
                for run in runs.collect::<Vec<_>>() {
                    items.push(if self.is_regular(&run[0]) { self.merge(&run) } else { self.rule(&run[0]) });
                }
                joined(items.into_iter(), " ")
            }
        }
    }

    /// A terminal of regular neighbours.
    fn merge(&mut self, nodes: &[Node]) -> String {
        if let [Node::Rule(rule)] = nodes {
            return self.reference(*rule);
        }
        let text = joined(nodes.iter().map(|node| self.terminal(node)), " ");
        self.merged += 1;
        let name = format!("M{}", self.merged);
        self.line(&name, &text);
        name
    }
}

fn joined(items: impl Iterator<Item = String>, between: &str) -> String {
    format!("({})", items.collect::<Vec<_>>().join(between))
}

fn repeated(item: &str, least: usize, most: Option<usize>) -> String {
    match (least, most) {
        (0, None) => format!("({item})*"),
        (1, None) => format!("({item})+"),
        (0, Some(1)) => format!("({item})?"),
        (_, Some(0)) => "\"\"".into(),
        (least, None) => format!("({item}){{{least},}}"),
        (least, Some(most)) => format!("({item}){{{least},{most}}}"),
    }
}
