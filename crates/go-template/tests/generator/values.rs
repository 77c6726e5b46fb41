//! Strings and values of generated templates.

use super::table::Kind;

const TEXTS: [&str; 44] = [
    "",
    " ",
    "a",
    "abc",
    "Hello World",
    "foo_bar-baz",
    "fooBarBaz",
    "HTTPStatus2xx",
    "  padded  ",
    "a,b,,c",
    "x=1",
    "42",
    "-7",
    "010",
    "0x1f",
    "1e3",
    "3.14",
    "true",
    "yes",
    "null",
    "~",
    "- a",
    "key: value",
    "#no",
    "'q'",
    "\"dq\"",
    "<b>&amp;</b>",
    "line1\nline2\n",
    "\ttab",
    "tail ",
    "üñí ß",
    "日本 語",
    "😀",
    "1.2.3",
    "v1.2.3-beta.1+build",
    ">=1.2.0, <2",
    "^1.2",
    "~1.x || 2.0.0 - 3",
    "https://user:pw@host.example:8080/p%20a?q=1#f",
    "YWJj",
    "MFRGG===",
    "[a-c]+(x)?",
    "2006-01-02 15:04",
    "2023-04-05T06:07:08Z",
];
const PATTERNS: [&str; 16] = [
    "a",
    "[a-z]+",
    r"\d+",
    r"(\w+)\s(\w+)",
    "^",
    "$",
    "x*",
    "(?i)HELLO",
    "[^a]",
    r"\.",
    "a|b",
    "(",
    "[[:alpha:]]+",
    "o{1,2}",
    r"\bW",
    ",",
];
const LAYOUTS: [&str; 10] = [
    "2006-01-02",
    "2006-01-02 15:04",
    "2006-01-02T15:04:05Z07:00",
    "Mon Jan _2 15:04:05 2006",
    "3:04PM",
    "02 Jan 06 15:04 MST",
    "Monday, January 2",
    "15:04:05.000",
    "2006-002",
    "06/1/2 -0700",
];
const ZONES: [&str; 6] =
    ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Nowhere", ""];
const FORMATS: [&str; 20] = [
    "%v",
    "%s",
    "%d",
    "%q",
    "%5d|%-5d|%05d",
    "%x",
    "%t",
    "%T",
    "%.2f",
    "%8.3f|",
    "%g",
    "%e",
    "%c",
    "%U",
    "%%",
    "%[2]v %[1]v",
    "%*d",
    "%+d",
    "%s and %v",
    "%6.2s|",
];
const DURATIONS: [&str; 7] = ["1h", "-30m", "1.5h", "10s", "2h45m", "bad", "0"];

/// Fields that contain strings.
pub(crate) const TEXT_FIELDS: [&str; 8] = [
    "$.Name",
    "$.Params.TEXT",
    "$.Params.UNICODE",
    "$.Params.NUMBER",
    "$.Params.EMPTY",
    "$.Params.BIG",
    "$.Namespace",
    "$.Pipes.Cert",
];

/// Kinds that represent any value.
pub(crate) const ANY: [Kind; 10] = [
    Kind::Int,
    Kind::Float,
    Kind::Bool,
    Kind::List,
    Kind::Texts,
    Kind::Ints,
    Kind::Map,
    Kind::Numeric,
    Kind::Json,
    Kind::Any,
];

/// Returns the strings of a kind that is written as a string literal.
#[expect(clippy::wildcard_enum_match_arm, reason = "the others are not texts")]
pub(crate) fn texts(kind: Kind) -> Option<&'static [&'static str]> {
    Some(match kind {
        Kind::Text => &TEXTS,
        Kind::Pattern => &PATTERNS,
        Kind::Layout => &LAYOUTS,
        Kind::Zone => &ZONES,
        Kind::Format => &FORMATS,
        Kind::Duration => &DURATIONS,
        _ => return None,
    })
}

/// Returns the values of a kind that is not written as a string literal.
#[expect(clippy::wildcard_enum_match_arm, reason = "the others are texts")]
pub(crate) fn values(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Int => &["0", "1", "2", "3", "5", "12", "-1", "-4", "0x10", "'a'", "1e1"],
        Kind::Float => &["0.5", "1.5", "-2.25", "1e3", "1e21", "0.000001", "123456.789"],
        Kind::Bool => &["true", "false", "(eq 1 1)", "(not $.Params.EMPTY)"],
        Kind::List => &[
            "$.Params.LIST",
            "(list 1 \"b\" nil 2.5)",
            "(list)",
            "$.Params.NESTED.list",
            "(list \"b\" \"a\" \"b\")",
        ],
        Kind::Texts => &["(splitList \",\" \"c,a,b\")", "(list \"x\" | toStrings)"],
        Kind::Ints => &["(until 4)", "(untilStep 5 0 -2)"],
        Kind::Map => &[
            "$.Params.MAP",
            "(dict \"a\" 1 \"b\" \"two\")",
            "(dict)",
            "$.Params.NESTED",
            "(dict \"a\" (dict \"x\" 1) \"l\" (list 1))",
            "$.Params.NESTED.map",
        ],
        Kind::Time => {
            &["now", "(toDate \"2006-01-02\" \"2024-02-29\")", "(now | dateModify \"-36h\")"]
        }
        Kind::Moment => &["now", "0", "1700000000", "(int64 86400)"],
        Kind::Numeric => &[
            "0",
            "7",
            "-3",
            "2.5",
            "\"12\"",
            "\"x\"",
            "true",
            "$.Params.NUMBER",
            "$.Params.MAP.c",
            "nil",
        ],
        // Only for some functions: those of Go that repeat and count would not end.
        Kind::Extreme => {
            &["9223372036854775807", "-9223372036854775808", "1e300", "\"0x1.8p-2147483648\""]
        }
        Kind::Small => &["0", "1", "2", "3", "4", "5", "7", "10", "-1"],
        Kind::Bound => &["0", "1"],
        Kind::Key => &["\"a\"", "\"b\"", "\"x\"", "\"k\"", "\"l\"", "\"none\""],
        Kind::Json => &[
            "$.Params.LIST",
            "$.Params.MAP",
            "$.Params.NESTED",
            "(list \"a: b\" \"- x\" \"y\" \"12\" 1.0)",
            "(dict \"k 1\" \"v\\nw\" \"k10\" \" s\" \"k2\" \"\" \"K\" \"t\\n\")",
            "\"text\"",
            "1.5",
            "nil",
            "(list (list 1 (dict \"a\" (list))) (dict))",
        ],
        _ => &["$.Params.NIL", "\"text\""],
    }
}
