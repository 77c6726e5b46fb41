//! Encodings and hashes.

use aes::cipher::{BlockModeDecrypt as _, KeyIvInit as _, block_padding::NoPadding};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha1::Digest as _;

use super::signature::fixed;
use crate::{
    calls::{Call, Function, Type},
    error::Failure,
    value::{
        Value,
        json::{self, Layout},
        yaml,
    },
};

const TEXT: &[Type] = &[Type::Text];
const ANY: &[Type] = &[Type::Any];
const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "b64enc" => fixed(TEXT, |call| {
            let text = STANDARD.encode(call.text(0).bytes());
            call.make(text)
        }),
        "b64dec" => fixed(TEXT, |call| decoded(call, base64, "base64")),
        "b32enc" => fixed(TEXT, |call| {
            let text = base32_encoded(call.text(0).bytes());
            call.make(text)
        }),
        "b32dec" => fixed(TEXT, |call| decoded(call, base32, "base32")),
        "sha1sum" => fixed(TEXT, |call| {
            let sum = hex::encode(sha1::Sha1::digest(call.text(0).bytes()));
            call.make(sum)
        }),
        "sha256sum" => fixed(TEXT, |call| {
            let sum = hex::encode(sha2::Sha256::digest(call.text(0).bytes()));
            call.make(sum)
        }),
        "adler32sum" => fixed(TEXT, |call| {
            let mut sum = adler2::Adler32::new();
            sum.write_slice(call.text(0).bytes());
            call.make(sum.checksum().to_string())
        }),
        "decryptAES" => fixed(&[Type::Text, Type::Text], decrypted),
        "toJson" => fixed(ANY, |call| to_json(call, Layout::Compact)),
        "toPrettyJson" => fixed(ANY, |call| to_json(call, Layout::Indented)),
        "toYaml" => fixed(ANY, |call| {
            let text = yaml::write(call.heap, &call.value(0))?;
            call.make(text)
        }),
        _ => return None,
    })
}

/// Encodes JSON; the result is empty if a number is infinite or NaN.
fn to_json(call: &mut Call<'_>, layout: Layout) -> Result<Value, Failure> {
    let text = json::write(call.heap, &call.value(0), layout)?;
    call.make(text.unwrap_or_default())
}

/// Position of the byte that cannot be decoded.
type Position = usize;

/// Decodes a string. Returns the error's text if decoding fails, as Sprig does.
fn decoded(
    call: &mut Call<'_>,
    decode: fn(&[u8]) -> Result<Vec<u8>, Position>,
    name: &str,
) -> Result<Value, Failure> {
    let result = decode(call.text(0).bytes());
    call.make(result.unwrap_or_else(|position| {
        format!("illegal {name} data at input byte {position}").into_bytes()
    }))
}

fn digit(alphabet: &[u8], byte: u8) -> Option<u8> {
    let position = alphabet.iter().position(|digit| *digit == byte)?;
    u8::try_from(position).ok()
}

/// Decodes base64 as Go does: line breaks are skipped, padding is required.
fn base64(bytes: &[u8]) -> Result<Vec<u8>, Position> {
    let mut out = Vec::new();
    let mut position = 0;
    loop {
        let mut digits = Vec::with_capacity(4);
        while digits.len() < 4 {
            position = behind_breaks(bytes, position);
            let Some(byte) = bytes.get(position) else {
                if digits.is_empty() {
                    return Ok(out);
                }
                return Err(position - digits.len());
            };
            position += 1;
            match digit(BASE64, *byte) {
                Some(digit) => digits.push(digit),
                None if *byte == b'=' && digits.len() >= 2 => break,
                None => return Err(position - 1),
            }
        }
        let count = digits.len();
        if count == 2 {
            position = behind_breaks(bytes, position);
            match bytes.get(position) {
                None => return Err(bytes.len()),
                Some(b'=') => position += 1,
                Some(_) => return Err(position - 1),
            }
        }
        digits.resize(4, 0);
        let all = digits.iter().fold(0_u32, |all, digit| all << 6 | u32::from(*digit));
        out.extend(&all.to_be_bytes()[1..count]);
        if count < 4 {
            position = behind_breaks(bytes, position);
            return if position < bytes.len() { Err(position) } else { Ok(out) };
        }
    }
}

fn behind_breaks(bytes: &[u8], start: usize) -> usize {
    let mut position = start;
    while matches!(bytes.get(position), Some(b'\r' | b'\n')) {
        position += 1;
    }
    position
}

/// Decodes base32 as Go does; a short rest after the padding is ignored.
fn base32(bytes: &[u8]) -> Result<Vec<u8>, Position> {
    let bytes: Vec<u8> =
        bytes.iter().copied().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
    let mut out = Vec::new();
    let mut position = 0;
    while position < bytes.len() {
        let mut digits = Vec::with_capacity(8);
        while digits.len() < 8 {
            let Some(byte) = bytes.get(position) else {
                return Err(position - digits.len());
            };
            position += 1;
            let rest = &bytes[position..];
            let count = digits.len();
            if *byte == b'=' && count >= 2 && rest.len() < 8 {
                if rest.len() + count < 7 {
                    return Err(bytes.len());
                }
                let padding = rest.iter().take(7 - count);
                if let Some(wrong) = padding.into_iter().position(|byte| *byte != b'=') {
                    return Err(position + wrong - 1);
                }
                if matches!(count, 1 | 3 | 6) {
                    return Err(position - 1);
                }
                position = bytes.len();
                break;
            }
            digits.push(digit(BASE32, *byte).ok_or(position - 1)?);
        }
        let count = digits.len() * 5 / 8;
        digits.resize(8, 0);
        let all = digits.iter().fold(0_u64, |all, digit| all << 5 | u64::from(*digit));
        out.extend(&all.to_be_bytes()[3..3 + count]);
    }
    Ok(out)
}

fn base32_encoded(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.chunks(5) {
        let mut block = [0; 8];
        block[3..3 + chunk.len()].copy_from_slice(chunk);
        let all = u64::from_be_bytes(block);
        let digits = (chunk.len() * 8).div_ceil(5);
        for index in 0..8 {
            let shift = 35 - 5 * index;
            let digit = usize::try_from(all >> shift & 31).unwrap_or(0);
            out.push(if index < digits { char::from(BASE32[digit]) } else { '=' });
        }
    }
    out
}

/// Decrypts the output of Sprig's `encryptAES`: initialization vector, then AES-256-CBC with PKCS#7
/// padding; the password is padded with zeros.
fn decrypted(call: &mut Call<'_>) -> Result<Value, Failure> {
    let password = call.text(0);
    let text = call.text(1);
    if text.bytes().is_empty() {
        return call.make("");
    }
    let plain = plain_bytes(password.bytes(), text.bytes());
    call.make(plain.ok_or_else(|| Failure::invalid("encrypted text", text.bytes()))?)
}

fn plain_bytes(password: &[u8], text: &[u8]) -> Option<Vec<u8>> {
    let mut key = [0; 32];
    let length = password.len().min(32);
    key[..length].copy_from_slice(&password[..length]);
    let bytes = base64(text).ok()?;
    let (vector, blocks) = bytes.split_at_checked(16)?;
    let decryptor = cbc::Decryptor::<aes::Aes256>::new_from_slices(&key, vector).ok()?;
    let mut plain = decryptor.decrypt_padded_vec::<NoPadding>(blocks).ok()?;
    let padding = usize::from(*plain.last()?);
    plain.truncate(plain.len().checked_sub(padding)?);
    Some(plain)
}
