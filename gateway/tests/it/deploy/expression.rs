//! What an expression of Prometheus asks for: metrics, labels and their values.
//!
//! Not a parser: `promtool` says whether an expression is one. This reads names out of those that are.

use std::collections::BTreeSet;

/// The names in one expression.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) selectors: Vec<Selector>,
    /// In `by`, `on` and the like.
    pub(crate) grouping: BTreeSet<String>,
    /// Labels that `label_replace` and `label_join` make.
    pub(crate) made: BTreeSet<String>,
}

/// A metric, and what its labels must be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) metric: String,
    pub(crate) matchers: Vec<Matcher>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Matcher {
    pub(crate) label: String,
    /// `=`, `!=`, `=~` or `!~`.
    pub(crate) operator: String,
    pub(crate) value: String,
}

const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

const WORDS: [&str; 8] = ["and", "or", "unless", "bool", "offset", "inf", "nan", "atan2"];

const AGGREGATIONS: [&str; 10] =
    ["sum", "min", "max", "avg", "group", "count", "stddev", "topk", "bottomk", "quantile"];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Other(char),
}

impl Names {
    pub(crate) fn of(expression: &str) -> Self {
        let tokens = tokens(expression);
        let mut names = Self::default();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            let Token::Word(word) = token else { continue };
            let next = tokens.get(at);
            if GROUPING.contains(&word.as_str()) && next == Some(&Token::Other('(')) {
                let end = end_of(&tokens, at, ')');
                names.grouping.extend(tokens[at..end].iter().filter_map(word_of));
                at = end;
            } else if matches!(word.as_str(), "label_replace" | "label_join") {
                let text = |token: &Token| match token {
                    Token::Text(text) => Some(text.clone()),
                    Token::Word(_) | Token::Other(_) => None,
                };
                names.made.extend(tokens[made_at(&tokens, at)..].iter().find_map(text));
            } else if next == Some(&Token::Other('{')) {
                let end = end_of(&tokens, at, '}');
                let matchers = matchers(&tokens[at + 1..end]);
                names.selectors.push(Selector { metric: word.clone(), matchers });
                at = end;
            } else if next != Some(&Token::Other('(')) && !is_language(word) {
                names.selectors.push(Selector { metric: word.clone(), matchers: Vec::new() });
            }
        }

        names
    }
}

fn is_language(word: &str) -> bool {
    WORDS.contains(&word) || AGGREGATIONS.contains(&word)
}

/// Where the second argument of a call begins whose parenthesis is at `at`.
fn made_at(tokens: &[Token], at: usize) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token {
            Token::Other('(' | '{') => depth += 1,
            Token::Other(')' | '}') => depth -= 1,
            Token::Other(',') if depth == 1 => return index,
            Token::Word(_) | Token::Text(_) | Token::Other(_) => {}
        }
    }

    panic!("one argument in {tokens:?}")
}

fn end_of(tokens: &[Token], at: usize, closing: char) -> usize {
    let is_end = |token: &Token| *token == Token::Other(closing);

    at + tokens[at..].iter().position(is_end).unwrap()
}

fn word_of(token: &Token) -> Option<String> {
    match token {
        Token::Word(word) => Some(word.clone()),
        Token::Text(_) | Token::Other(_) => None,
    }
}

fn matchers(tokens: &[Token]) -> Vec<Matcher> {
    let mut matchers = Vec::new();
    for matcher in tokens.split(|token| *token == Token::Other(',')) {
        match matcher {
            [] => {}
            [Token::Word(label), operator @ .., Token::Text(value)] => {
                let operator = operator.iter().map(|token| match token {
                    Token::Other(character) => *character,
                    Token::Word(_) | Token::Text(_) => panic!("no operator in {matcher:?}"),
                });
                matchers.push(Matcher {
                    label: label.clone(),
                    operator: operator.collect(),
                    value: value.clone(),
                });
            }
            _ => panic!("no matcher: {matcher:?}"),
        }
    }

    matchers
}

/// Without white space, comments, numbers and ranges.
fn tokens(expression: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = expression.chars().peekable();
    while let Some(character) = rest.next() {
        let mut take = |text: &mut String, more: fn(char) -> bool| {
            while let Some(next) = rest.next_if(|next| more(*next)) {
                text.push(next);
            }
        };
        match character {
            '#' => take(&mut String::new(), |next| next != '\n'),
            '[' => take(&mut String::new(), |next| next != ']'),
            '0'..='9' | '.' => {
                take(&mut String::new(), |next| next.is_ascii_alphanumeric() || next == '.');
            }
            'a'..='z' | 'A'..='Z' | '_' => {
                let mut word = String::from(character);
                take(&mut word, |next| next.is_ascii_alphanumeric() || matches!(next, '_' | ':'));
                tokens.push(Token::Word(word));
            }
            '"' => {
                let mut text = String::new();
                while let Some(next) = rest.next_if(|next| *next != '"') {
                    text.push(if next == '\\' { rest.next().unwrap() } else { next });
                }
                rest.next();
                tokens.push(Token::Text(text));
            }
            _ if character.is_whitespace() || character == ']' => {}
            _ => tokens.push(Token::Other(character)),
        }
    }

    tokens
}

#[test]
fn names_are_told_from_functions_words_and_numbers() {
    let names = Names::of(
        r#"8 * sum by (namespace, le) (rate(a_total{peer=~"x|y",pod!=""}[5m])) > 1e3 and on (pod)
           label_replace(b == 0 unless time() - c{} > 2, "made", "$1", "peer", "(.*)") # d"#,
    );

    let metrics: Vec<_> = names.selectors.iter().map(|selector| selector.metric.as_str()).collect();
    assert_eq!(metrics, ["a_total", "b", "c"]);
    let matcher = |label: &str, operator: &str, value: &str| Matcher {
        label: label.to_owned(),
        operator: operator.to_owned(),
        value: value.to_owned(),
    };
    assert_eq!(
        names.selectors[0].matchers,
        [matcher("peer", "=~", "x|y"), matcher("pod", "!=", "")]
    );
    let set = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    assert_eq!(names.grouping, set(&["namespace", "le", "pod"]));
    assert_eq!(names.made, set(&["made"]));
}
