//! Formats of dates and times in JSON schemas, of which the grammars' engine knows the form alone: it lets February have 29 days in every year, and a
//! minute 61 seconds.

use serde_json::{Map, Value, json};

/// Keywords whose values are no schemas.
const PLAIN: [&str; 4] = ["const", "enum", "default", "examples"];

/// Keywords whose values are schemas by names that anybody may choose.
const NAMED: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// A year, month and day of the Gregorian calendar, as RFC 3339 writes them, from the year 1 on.
macro_rules! date {
    () => {
        concat!(
            r"(?:(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)-",
            r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))",
            // Years that four divides, but for those of a century that four does not divide.
            r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
        )
    };
}

/// A time of the day and its zone, without leap seconds: whether there is one, no expression can tell.
macro_rules! time {
    () => {
        r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
    };
}

/// The expression that all texts of a format match, and no others.
fn pattern(format: &str) -> Option<&'static str> {
    match format {
        "date" => Some(concat!("^", date!(), "$")),
        "time" => Some(concat!("^", time!(), "$")),
        "date-time" => Some(concat!("^", date!(), "[tT]", time!(), "$")),
        _ => None,
    }
}

/// Puts expressions in the place of such formats, wherever a schema has one.
pub fn tighten(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(tighten),
        Value::Object(map) => {
            if let Some(pattern) = map.get("format").and_then(Value::as_str).and_then(pattern) {
                map.remove("format");
                demand(map, pattern);
            }
            for (key, value) in map.iter_mut().filter(|(key, _)| !PLAIN.contains(&key.as_str())) {
                match value {
                    Value::Object(named) if NAMED.contains(&key.as_str()) => named.values_mut().for_each(tighten),
                    value => tighten(value),
                }
            }
        }
        _ => {}
    }
}

/// Adds an expression to what a schema demands of a text.
fn demand(map: &mut Map<String, Value>, pattern: &str) {
    if !map.contains_key("pattern") {
        map.insert("pattern".into(), pattern.into());
    } else if let Value::Array(all) = map.entry("allOf").or_insert_with(|| json!([])) {
        all.push(json!({"pattern": pattern}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regex_automata::meta::Regex;
    use serde_json::json;

    fn matches(format: &str, text: &str) -> bool {
        Regex::new(pattern(format).unwrap()).unwrap().is_match(text)
    }

    #[test]
    fn every_day_of_the_calendar_is_a_date_and_no_other() {
        for year in (0..=9999).filter(|year| year % 100 < 9 || year % 7 == 0) {
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            assert_eq!(matches("date", &format!("{year:04}-02-29")), is_leap && year > 0, "{year}");
            assert_eq!(matches("date", &format!("{year:04}-02-28")), year > 0, "{year}");
        }
        for (month, days) in [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31].into_iter().enumerate() {
            for day in 0..=32 {
                let is_day = (1..=days).contains(&day);
                assert_eq!(matches("date", &format!("2023-{:02}-{day:02}", month + 1)), is_day, "{month} {day}");
            }
        }
        assert!(!matches("date", "2023-00-10") && !matches("date", "2023-13-10") && !matches("date", "2023-1-10"));
    }

    #[test]
    fn times_have_a_zone_and_no_leap_seconds() {
        for time in ["00:00:00Z", "23:59:59.25+23:59", "12:30:01z"] {
            assert!(matches("time", time) && matches("date-time", &format!("2024-02-29T{time}")));
        }
        for time in ["24:00:00Z", "23:60:00Z", "23:59:60Z", "12:30:01", "12:30Z", "12:30:01+24:00", "12:30:01.Z"] {
            assert!(!matches("time", time) && !matches("date-time", &format!("2024-02-29t{time}")), "{time}");
        }
    }

    #[test]
    fn formats_become_expressions_where_schemas_are_and_nowhere_else() {
        let (date, time) = (pattern("date"), pattern("time"));
        let mut schema = json!({
            "properties": {"format": {"format": "date"}, "default": {"format": "time"}, "a": {"format": "date", "pattern": "^1"}},
            "items": [{"format": "time"}, {"format": "email"}],
            "enum": [{"format": "date"}],
        });
        tighten(&mut schema);
        let expected = json!({
            "properties": {
                "format": {"pattern": date},
                "default": {"pattern": time},
                "a": {"pattern": "^1", "allOf": [{"pattern": date}]},
            },
            "items": [{"pattern": time}, {"format": "email"}],
            "enum": [{"format": "date"}],
        });
        assert_eq!(schema, expected);
    }
}
