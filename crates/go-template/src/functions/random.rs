//! Random strings from a seed: the same template and seed give the same strings.

use super::signature::fixed;
use crate::{
    calls::{Call, Function, Type},
    error::Failure,
    text::runes,
    value::Value,
};

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "randAlpha" => fixed(&[Type::Int], |call| drawn(call, |c| c.is_ascii_alphabetic())),
        "randAlphaNum" => fixed(&[Type::Int], |call| drawn(call, |c| c.is_ascii_alphanumeric())),
        "randNumeric" => fixed(&[Type::Int], |call| drawn(call, |c| c.is_ascii_digit())),
        "randAscii" => fixed(&[Type::Int], |call| drawn(call, |c| (b' '..=b'~').contains(&c))),
        "uuidv4" => fixed(&[], |call| {
            let id = uuid(call.random.bytes());
            call.make(id)
        }),
        "shuffle" => fixed(&[Type::Text], |call| {
            let mut characters: Vec<char> = runes::characters(call.text(0).bytes()).collect();
            for index in (1..characters.len()).rev() {
                call.heap.step(1)?;
                characters.swap(index, call.random.below(index + 1));
            }
            call.make(characters.into_iter().collect::<String>())
        }),
        _ => return None,
    })
}

/// Returns random ASCII characters that `belongs` accepts; none for a negative length.
fn drawn(call: &mut Call<'_>, belongs: fn(u8) -> bool) -> Result<Value, Failure> {
    let count = usize::try_from(call.int(0)).unwrap_or(0);
    call.heap.reserve(count)?;
    call.heap.step(count)?;
    let alphabet: Vec<u8> = (0..=127).filter(|byte| belongs(*byte)).collect();
    let text: Vec<u8> = (0..count).map(|_| alphabet[call.random.below(alphabet.len())]).collect();
    Ok(Value::Text(text.into()))
}

/// Formats the first 16 bytes as a UUID of version 4.
fn uuid(bytes: [u8; 32]) -> String {
    let mut bytes = bytes;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let text = hex::encode(&bytes[..16]);
    format!("{}-{}-{}-{}-{}", &text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..])
}
