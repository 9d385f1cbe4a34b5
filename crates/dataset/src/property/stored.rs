//! The stored text of a property value: the words of index properties, plain numbers, and texts. It stays readable for
//! releases with other numbers, and is equal to the output of `zfs get -p`.

use super::{Assignment, IndexValue, Kind, Property, Value, find};

impl Property {
    /// The text to store for a value.
    #[must_use]
    pub fn to_stored(&self, value: &Value) -> String {
        match (self.kind, value) {
            (_, Value::Text(text)) => text.clone(),
            (Kind::Index(table), &Value::Number(number)) => {
                IndexValue::name_in(table, number).map_or_else(|| number.to_string(), str::to_owned)
            }
            (_, Value::Number(number)) => number.to_string(),
        }
    }

    /// The value of a stored text; `None` if it is not valid for this property.
    #[must_use]
    pub fn from_stored(&self, text: &str) -> Option<Value> {
        match self.kind {
            Kind::Text(_) => Some(text.into()),
            Kind::Index(table) => {
                IndexValue::number_in(table, text).or_else(|| text.parse().ok()).map(Value::Number)
            }
            _ => text.parse().ok().map(Value::Number),
        }
    }
}

impl Assignment {
    /// Name and stored text.
    #[must_use]
    pub fn to_stored(&self) -> (String, String) {
        let text = match (find(&self.name), &self.value) {
            (Some(property), value) => property.to_stored(value),
            (None, Value::Text(text)) => text.clone(),
            (None, Value::Number(number)) => number.to_string(),
        };
        (self.name.clone(), text)
    }
}
