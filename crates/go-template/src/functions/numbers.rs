//! Arithmetic.

use super::signature::{fixed, open};
use crate::{
    calls::{Call, Function, Type},
    error::Failure,
    text::float,
    value::{
        Element, Value,
        convert::{parse_integer, to_float, to_int64},
        print,
    },
};

const ANY: &[Type] = &[Type::Any];
const TWO: &[Type] = &[Type::Any, Type::Any];

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "int" => fixed(ANY, |call| Ok(Value::int(to_int64(&call.value(0))))),
        "int64" => fixed(ANY, |call| Ok(Value::int64(to_int64(&call.value(0))))),
        "float64" => fixed(ANY, |call| Ok(Value::Float(to_float(&call.value(0))))),
        "atoi" => fixed(&[Type::Text], |call| Ok(Value::int(atoi(call)))),
        "toDecimal" => fixed(ANY, octal),
        "add1" => fixed(ANY, |call| Ok(Value::int64(to_int64(&call.value(0)).wrapping_add(1)))),
        "add" => open(&[], Type::Any, |call| Ok(folded(call, 0, i64::wrapping_add))),
        "sub" => fixed(TWO, |call| {
            Ok(Value::int64(to_int64(&call.value(0)).wrapping_sub(to_int64(&call.value(1)))))
        }),
        "mul" => open(ANY, Type::Any, |call| Ok(folded(call, 1, i64::wrapping_mul))),
        "div" => fixed(TWO, |call| divided(call, i64::wrapping_div)),
        "mod" => fixed(TWO, |call| divided(call, i64::wrapping_rem)),
        "max" | "biggest" => open(ANY, Type::Any, |call| Ok(chosen(call, i64::max))),
        "min" => open(ANY, Type::Any, |call| Ok(chosen(call, i64::min))),
        "ceil" => fixed(ANY, |call| Ok(Value::Float(to_float(&call.value(0)).ceil()))),
        "floor" => fixed(ANY, |call| Ok(Value::Float(to_float(&call.value(0)).floor()))),
        "round" => open(&[Type::Any, Type::Int], Type::Float, |call| Ok(rounded(call))),
        "until" => fixed(&[Type::Int], |call| {
            let count = call.int(0);
            steps(call, 0, count, if count < 0 { -1 } else { 1 })
        }),
        "untilStep" => fixed(&[Type::Int, Type::Int, Type::Int], |call| {
            let start = call.int(0);
            let end = call.int(1);
            let step = call.int(2);
            steps(call, start, end, step)
        }),
        _ => return None,
    })
}

/// Parses a decimal integer; 0 if invalid, saturated if out of range.
fn atoi(call: &Call<'_>) -> i64 {
    let text = call.text(0);
    let text = std::str::from_utf8(text.bytes()).unwrap_or_default();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let nearest = match (is_number, text.starts_with('-')) {
        (false, _) => 0,
        (true, true) => i64::MIN,
        (true, false) => i64::MAX,
    };
    text.parse().unwrap_or(nearest)
}

fn octal(call: &mut Call<'_>) -> Result<Value, Failure> {
    let text = print::plain(call.heap, &call.value(0))?;
    Ok(Value::int64(parse_integer(&text, 8).unwrap_or(0)))
}

fn folded(call: &Call<'_>, first: i64, operation: fn(i64, i64) -> i64) -> Value {
    let numbers = call.arguments.iter().map(to_int64);
    Value::int64(numbers.fold(first, operation))
}

fn chosen(call: &Call<'_>, choose: fn(i64, i64) -> i64) -> Value {
    Value::int64(call.arguments.iter().map(to_int64).reduce(choose).unwrap_or(0))
}

fn divided(call: &Call<'_>, operation: fn(i64, i64) -> i64) -> Result<Value, Failure> {
    let divisor = to_int64(&call.value(1));
    if divisor == 0 {
        return Err(Failure::DivisionByZero);
    }
    Ok(Value::int64(operation(to_int64(&call.value(0)), divisor)))
}

/// Rounds to this number of decimal places; the third argument is the fraction from which to round
/// up.
fn rounded(call: &Call<'_>) -> Value {
    let from = match call.value(2) {
        Value::Float(from) => from,
        _ => 0.5,
    };
    let power = float::power_of_ten(call.int(1));
    let scaled = power * to_float(&call.value(0));
    let fraction = scaled - scaled.trunc();
    let whole = if fraction >= from { scaled.ceil() } else { scaled.floor() };
    Value::Float(whole / power)
}

fn steps(call: &mut Call<'_>, start: i64, end: i64, step: i64) -> Result<Value, Failure> {
    let mut numbers = Vec::new();
    let mut number = start;
    let is_down = end < start;
    let goes_there = if is_down { step < 0 } else { step > 0 };
    while goes_there && (if is_down { number > end } else { number < end }) {
        call.heap.step(1)?;
        numbers.push(Value::int(number));
        let Some(next) = number.checked_add(step) else { break };
        number = next;
    }
    call.heap.list(numbers, Element::Int)
}
