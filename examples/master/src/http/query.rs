//! The query of a request.

use mc_types::ErrorCode;

use super::failure::Failure;

/// Names and values as they stand behind the `?`, with their escapes.
#[derive(Clone, Copy)]
pub(super) struct Query<'a>(&'a str);

impl<'a> Query<'a> {
    pub(super) fn of(text: Option<&'a str>) -> Self {
        Self(text.unwrap_or_default())
    }

    /// The decoded values of a parameter, in their order.
    pub(super) fn all(self, name: &str) -> impl Iterator<Item = Result<String, Failure>> {
        let pairs = self.0.split('&').filter_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key).as_deref() == Some(name)).then_some(value)
        });
        pairs.map(move |value| {
            decode(value).ok_or_else(|| {
                let text = format!("the parameter {name} is not text in UTF-8");
                Failure::new(ErrorCode::InvalidParams, text)
            })
        })
    }

    /// The first value of a parameter, if it is there.
    pub(super) fn first(self, name: &str) -> Result<Option<String>, Failure> {
        self.all(name).next().transpose()
    }

    /// The first value of a parameter that must be there; `example` shows how it is written.
    pub(super) fn required(self, name: &str, example: &str) -> Result<String, Failure> {
        let value = self.first(name)?.filter(|value| !value.is_empty());
        value.ok_or_else(|| {
            let text = format!("the parameter {name} is missing; write {example}");
            Failure::new(ErrorCode::InvalidParams, text)
        })
    }

    /// The first value of a parameter that is a number.
    pub(super) fn number(self, name: &str) -> Result<Option<u64>, Failure> {
        let Some(text) = self.first(name)? else { return Ok(None) };
        let wrong = |_| {
            let text = format!("the parameter {name} must be a whole number");
            Failure::new(ErrorCode::InvalidParams, text)
        };
        text.parse().map(Some).map_err(wrong)
    }
}

/// The text with `%XX` and `+` replaced as forms write them; `None` when it is not UTF-8. A `%` without two
/// hexadecimal digits stands for itself.
fn decode(text: &str) -> Option<String> {
    let digit = |at: Option<&u8>| at.and_then(|byte| char::from(*byte).to_digit(16));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let escaped =
            if *first == b'%' { digit(after.first()).zip(digit(after.get(1))) } else { None };
        rest = after;
        bytes.push(match escaped {
            Some((high, low)) => {
                rest = &after[2..];
                (high * 16 + low) as u8
            }
            None if *first == b'+' => b' ',
            None => *first,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parameters_are_decoded() {
        let query = Query::of(Some("x=1&key=a%2Fb+c%2b%C3%A9&k%65y=2&empty=&bare&n=7&bad=%ff&%=3"));
        assert_eq!(query.first("key").unwrap().as_deref(), Some("a/b c+é"));
        let all: Vec<String> = query.all("key").map(Result::unwrap).collect();
        assert_eq!(all, ["a/b c+é", "2"]);
        assert_eq!(query.first("bare").unwrap().as_deref(), Some(""));
        assert_eq!(query.first("none").unwrap(), None);
        assert_eq!((query.number("n").unwrap(), query.number("none").unwrap()), (Some(7), None));
        assert_eq!(query.first("%").unwrap().as_deref(), Some("3"));
        for name in ["empty", "bare", "none"] {
            assert!(query.required(name, "?x=y").unwrap_err().text.contains("missing; write ?x=y"));
        }
        assert!(query.first("bad").unwrap_err().text.contains("not text in UTF-8"));
        assert!(query.number("key").is_err() && query.number("empty").is_err());
    }

    proptest! {
        #[test]
        fn what_a_form_writes_is_read_again(text in "\\PC{0,20}") {
            let written: String = form_urlencoded::byte_serialize(text.as_bytes()).collect();
            prop_assert_eq!(decode(&written), Some(text));
        }

        #[test]
        fn nothing_panics(text in "[%+a-fA-F0-9=&é]{0,20}") {
            let _ = Query::of(Some(&text)).all("a").collect::<Vec<_>>();
        }
    }
}
