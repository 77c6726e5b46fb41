//! URLs as Go's `net/url` parses and formats them.

use std::{collections::BTreeMap, net::Ipv6Addr};

use super::signature::fixed;
use crate::{
    calls::{Call, Function, Type},
    error::Failure,
    text::Text,
    value::{Element, Value},
};

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "urlParse" => fixed(&[Type::Text], split),
        "urlJoin" => fixed(&[Type::Map], joined),
        _ => return None,
    })
}

/// Returns the parts of a URL.
fn split(call: &mut Call<'_>) -> Result<Value, Failure> {
    let text = call.text(0);
    let Some(url) = Url::parse(text.bytes()) else {
        return Err(Failure::invalid("URL", text.bytes()));
    };
    let parts = [
        ("scheme", url.scheme),
        ("hostname", hostname(&url.host).to_vec()),
        ("host", url.host),
        ("path", url.path),
        ("query", url.query),
        ("opaque", url.opaque),
        ("fragment", url.fragment),
        ("userinfo", url.user.map(|user| user.text()).unwrap_or_default()),
    ];
    let mut entries = BTreeMap::new();
    for (key, value) in parts {
        entries.insert(Text::from(key), Value::text(value));
    }
    call.heap.map(entries, Element::Any)
}

/// Component of a URL; determines the escaping.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Host,
    Zone,
    Path,
    User,
    Query,
    Fragment,
}

fn is_plain(byte: u8, place: Place) -> bool {
    match byte {
        b'-' | b'_' | b'.' | b'~' => true,
        byte if byte.is_ascii_alphanumeric() => true,
        b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' | b':'
        | b'[' | b']' | b'<' | b'>' | b'"'
            if matches!(place, Place::Host | Place::Zone) =>
        {
            true
        }
        b'$' | b'&' | b'+' | b',' | b'/' | b':' | b';' | b'=' | b'?' | b'@' => match place {
            Place::Path => byte != b'?',
            Place::User => !matches!(byte, b'@' | b'/' | b'?' | b':'),
            Place::Fragment => true,
            Place::Host | Place::Zone | Place::Query => false,
        },
        b'!' | b'(' | b')' | b'*' => place == Place::Fragment,
        _ => false,
    }
}

fn escape(bytes: &[u8], place: Place) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for byte in bytes {
        if is_plain(*byte, place) {
            out.push(*byte);
        } else if *byte == b' ' && place == Place::Query {
            out.push(b'+');
        } else {
            out.extend(format!("%{byte:02X}").into_bytes());
        }
    }
    out
}

/// Escapes a text for a query.
pub(super) fn query_escape(bytes: &[u8]) -> Vec<u8> {
    escape(bytes, Place::Query)
}

fn unescape(bytes: &[u8], place: Place) -> Option<Vec<u8>> {
    let in_host = matches!(place, Place::Host | Place::Zone);
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        if *byte != b'%' {
            if in_host && byte.is_ascii() && !is_plain(*byte, place) {
                return None;
            }
            out.push(*byte);
            continue;
        }
        let digits = behind.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
        let digits = std::str::from_utf8(digits).ok()?;
        let value = u8::from_str_radix(digits, 16).ok()?;
        let is_percent = digits == "25";
        if place == Place::Host && value < 0x80 && !is_percent {
            return None;
        }
        if place == Place::Zone && !is_percent && value != b' ' && !is_plain(value, Place::Host) {
            return None;
        }
        out.push(value);
        rest = &behind[2..];
    }
    Some(out)
}

/// User name and password.
struct User {
    name: Vec<u8>,
    password: Option<Vec<u8>>,
}

impl User {
    fn parse(text: &[u8]) -> Option<Self> {
        let signs = b"-._:~!$&'()*+,;=%@";
        if !text.iter().all(|byte| byte.is_ascii_alphanumeric() || signs.contains(byte)) {
            return None;
        }
        let (name, password) = match cut(text, b':') {
            (name, Some(password)) => (name, Some(unescape(password, Place::User)?)),
            (name, None) => (name, None),
        };
        Some(Self { name: unescape(name, Place::User)?, password })
    }

    fn text(&self) -> Vec<u8> {
        let mut out = escape(&self.name, Place::User);
        if let Some(password) = &self.password {
            out.push(b':');
            out.extend(escape(password, Place::User));
        }
        out
    }
}

#[derive(Default)]
struct Url {
    scheme: Vec<u8>,
    opaque: Vec<u8>,
    user: Option<User>,
    host: Vec<u8>,
    path: Vec<u8>,
    query: Vec<u8>,
    fragment: Vec<u8>,
}

/// Splits at the first occurrence of a byte.
fn cut(text: &[u8], at: u8) -> (&[u8], Option<&[u8]>) {
    match text.iter().position(|byte| *byte == at) {
        Some(position) => (&text[..position], Some(&text[position + 1..])),
        None => (text, None),
    }
}

impl Url {
    fn parse(text: &[u8]) -> Option<Self> {
        let (text, fragment) = cut(text, b'#');
        let mut url = Self::default();
        if text.iter().any(u8::is_ascii_control) {
            return None;
        }
        if text == b"*" {
            url.path = text.to_vec();
        } else {
            url.parse_hierarchy(text)?;
        }
        if let Some(fragment) = fragment {
            url.fragment = unescape(fragment, Place::Fragment)?;
        }
        Some(url)
    }

    fn parse_hierarchy(&mut self, text: &[u8]) -> Option<()> {
        let (scheme, rest) = split_scheme(text)?;
        self.scheme = scheme.to_ascii_lowercase();
        let (mut rest, query) = cut(rest, b'?');
        self.query = query.unwrap_or_default().to_vec();
        if !rest.starts_with(b"/") {
            if !self.scheme.is_empty() {
                self.opaque = rest.to_vec();
                return Some(());
            }
            if cut(rest, b'/').0.contains(&b':') {
                return None;
            }
        }
        if (!self.scheme.is_empty() || !rest.starts_with(b"///")) && rest.starts_with(b"//") {
            let authority = &rest[2..];
            let end = authority.iter().position(|byte| *byte == b'/').unwrap_or(authority.len());
            rest = &authority[end..];
            self.parse_authority(&authority[..end])?;
        }
        self.path = unescape(rest, Place::Path)?;
        Some(())
    }

    fn parse_authority(&mut self, authority: &[u8]) -> Option<()> {
        let at = authority.iter().rposition(|byte| *byte == b'@');
        let host = at.map_or(authority, |at| &authority[at + 1..]);
        self.host = parse_host(&self.scheme, host)?;
        if let Some(at) = at {
            self.user = Some(User::parse(&authority[..at])?);
        }
        Some(())
    }

    fn text(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.scheme.is_empty() {
            out.extend(&self.scheme);
            out.push(b':');
        }
        if self.opaque.is_empty() {
            let has_authority = !self.host.is_empty() || self.user.is_some();
            if has_authority || !self.scheme.is_empty() && !self.path.is_empty() {
                out.extend(b"//");
                if let Some(user) = &self.user {
                    out.extend(user.text());
                    out.push(b'@');
                }
                out.extend(escape(&self.host, Place::Host));
            }
            let path =
                if self.path == b"*" { self.path.clone() } else { escape(&self.path, Place::Path) };
            if !path.is_empty() && !path.starts_with(b"/") && !self.host.is_empty() {
                out.push(b'/');
            }
            if out.is_empty() && cut(&path, b'/').0.contains(&b':') {
                out.extend(b"./");
            }
            out.extend(path);
        } else {
            out.extend(&self.opaque);
        }
        if !self.query.is_empty() {
            out.push(b'?');
            out.extend(&self.query);
        }
        if !self.fragment.is_empty() {
            out.push(b'#');
            out.extend(escape(&self.fragment, Place::Fragment));
        }
        out
    }
}

/// Splits off the scheme: empty if missing, `None` if the text begins with `:`.
fn split_scheme(text: &[u8]) -> Option<(&[u8], &[u8])> {
    for (index, byte) in text.iter().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if index > 0 => {}
            b':' if index == 0 => return None,
            b':' => return Some((&text[..index], &text[index + 1..])),
            _ => return Some((b"", text)),
        }
    }
    Some((b"", text))
}

fn parse_host(scheme: &[u8], host: &[u8]) -> Option<Vec<u8>> {
    match host.iter().rposition(|byte| *byte == b'[') {
        Some(0) => {
            let end = host.iter().rposition(|byte| *byte == b']')?;
            let address = &host[1..end];
            let port = &host[end + 1..];
            if !is_port(port) {
                return None;
            }
            let zone = address.windows(3).position(|window| window == b"%25");
            let plain = match zone {
                Some(zone) => {
                    let mut plain = unescape(&address[..zone], Place::Host)?;
                    plain.extend(unescape(&address[zone..], Place::Zone)?);
                    plain
                }
                None => unescape(address, Place::Host)?,
            };
            if !is_address(&plain) {
                return None;
            }
            return Some([b"[", plain.as_slice(), b"]", port].concat());
        }
        Some(_) => return None,
        None => {}
    }
    let is_web = matches!(scheme, b"http" | b"https");
    let colon = if is_web {
        host.iter().position(|byte| *byte == b':')
    } else {
        host.iter().rposition(|byte| *byte == b':')
    };
    if colon.is_some_and(|colon| !is_port(&host[colon..])) {
        return None;
    }
    unescape(host, Place::Host)
}

fn is_port(text: &[u8]) -> bool {
    text.split_first()
        .is_none_or(|(colon, digits)| *colon == b':' && digits.iter().all(u8::is_ascii_digit))
}

/// Returns true if the text is an IPv6 address, with or without a zone.
fn is_address(text: &[u8]) -> bool {
    let (address, zone) = cut(text, b'%');
    let address = std::str::from_utf8(address).ok();
    let is_address = address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    is_address && zone.is_none_or(|zone| !zone.is_empty())
}

/// Returns a host without its port and brackets.
fn hostname(host: &[u8]) -> &[u8] {
    let colon = host.iter().rposition(|byte| *byte == b':');
    let host = match colon {
        Some(colon) if is_port(&host[colon..]) => &host[..colon],
        _ => host,
    };
    host.strip_prefix(b"[").and_then(|host| host.strip_suffix(b"]")).unwrap_or(host)
}

fn joined(call: &mut Call<'_>) -> Result<Value, Failure> {
    let map = call.map(0);
    let entries = call.heap.entries(map);
    let mut url = Url {
        scheme: part(entries, "scheme")?,
        host: part(entries, "host")?,
        path: part(entries, "path")?,
        query: part(entries, "query")?,
        opaque: part(entries, "opaque")?,
        fragment: part(entries, "fragment")?,
        user: None,
    };
    let user = part(entries, "userinfo")?;
    if !user.is_empty() {
        let text = [b"proto://", user.as_slice(), b"@host"].concat();
        let Some(parsed) = Url::parse(&text) else {
            return Err(Failure::invalid("user information", &user));
        };
        url.user = parsed.user;
    }
    call.make(url.text())
}

fn part(entries: &BTreeMap<Text, Value>, key: &str) -> Result<Vec<u8>, Failure> {
    match entries.get(&Text::from(key)) {
        None => Ok(Vec::new()),
        Some(Value::Text(text)) => Ok(text.bytes().to_vec()),
        Some(other) => Err(Failure::WrongType { expected: "string", found: other.type_name() }),
    }
}
