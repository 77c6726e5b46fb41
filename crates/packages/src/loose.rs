//! Deserializes JSON as KUDO does: for a string field, a number or boolean becomes its text, and
//! null is the empty value. Field names are case-sensitive.

#![expect(clippy::wildcard_enum_match_arm, reason = "any other value is read as it is")]

use serde::{
    Deserialize, Deserializer, de,
    de::{IntoDeserializer as _, value::StringDeserializer},
    forward_to_deserialize_any,
};
use serde_json::{Error, Map, Value};

use crate::yaml;

/// Deserializes a value.
///
/// # Errors
///
/// If a field has the wrong type.
pub(crate) fn read<T: for<'de> Deserialize<'de>>(value: &Value) -> Result<T, Error> {
    T::deserialize(Loose(value))
}

#[derive(Clone, Copy)]
struct Loose<'a>(&'a Value);

impl Loose<'_> {
    fn text(self) -> Option<String> {
        match self.0 {
            Value::Array(_) | Value::Object(_) => None,
            scalar => Some(yaml::text(scalar)),
        }
    }
}

impl<'de> Deserializer<'de> for Loose<'_> {
    type Error = Error;

    fn deserialize_any<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(items) => visitor.visit_seq(Items(items.iter())),
            Value::Object(entries) => visitor.visit_map(Entries::of(entries)),
            scalar => scalar.clone().deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.text() {
            Some(text) => visitor.visit_string(text),
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_str<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_string(visitor)
    }

    fn deserialize_bool<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_bool(false),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_seq<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_seq(Items([].iter())),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_map<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_map(Entries::of(&Map::new())),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: de::Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: de::Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let text: StringDeserializer<Error> = self.text().unwrap_or_default().into_deserializer();
        visitor.visit_enum(text)
    }

    fn deserialize_newtype_struct<V: de::Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_u32<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_u32(0),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_f64<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_f64(0.0),
            _ => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u64 u128 f32 char bytes byte_buf unit unit_struct tuple
        tuple_struct identifier ignored_any
    }
}

struct Items<'a>(std::slice::Iter<'a, Value>);

impl<'de> de::SeqAccess<'de> for Items<'_> {
    type Error = Error;

    fn next_element_seed<T: de::DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        self.0.next().map(|item| seed.deserialize(Loose(item))).transpose()
    }
}

struct Entries<'a> {
    entries: serde_json::map::Iter<'a>,
    value: &'a Value,
}

impl<'a> Entries<'a> {
    fn of(entries: &'a Map<String, Value>) -> Self {
        Self { entries: entries.iter(), value: &Value::Null }
    }
}

impl<'de> de::MapAccess<'de> for Entries<'_> {
    type Error = Error;

    fn next_key_seed<K: de::DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some((key, value)) = self.entries.next() else { return Ok(None) };
        self.value = value;
        seed.deserialize(key.as_str().into_deserializer()).map(Some)
    }

    fn next_value_seed<V: de::DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(Loose(self.value))
    }
}
