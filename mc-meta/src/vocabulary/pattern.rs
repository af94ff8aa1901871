//! Regular expressions over keys whose cost is bounded before they run.

use core::fmt;

use mc_types::ErrorCode;
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::nfa::thompson::WhichCaptures;
use regex_automata::{Input, MatchKind};
use regex_syntax::ast;
use regex_syntax::hir::{Hir, HirKind, Look};
use thiserror::Error;

/// Longest pattern, in bytes: room for the longest key with every byte escaped.
pub const MAX_PATTERN_LEN: usize = 4096;

/// How deep groups, classes and repetitions may nest. The parser recurses.
const MAX_NESTING: u32 = 64;

/// Bytes of the automaton that a pattern becomes, and of the two steps towards it. With
/// these the worst patterns that we could construct cost 0.4 s of processor time, be they
/// taken or refused, while the longest key still fits as a literal that is anchored.
const MAX_NFA_BYTES: usize = 1 << 17;
const MAX_SCRATCH_BYTES: usize = 1 << 19;
const MAX_DFA_BYTES: usize = 1 << 20;

/// A regular expression that keys are searched for.
///
/// The whole automaton is built in advance, and a pattern for which that is too large
/// is refused. So a search looks one table entry up for each byte of the key, whatever
/// the pattern: none backtracks, and none runs from a cache that another key can spoil.
/// (The construction is the subset construction of Rabin and Scott, 1959.)
///
/// As in Mooncake a pattern may match anywhere in a key unless it is
/// anchored with `^` and `$`, the empty pattern matches every key, and `.`, `\w` and `\d`
/// mean one byte, ASCII letters and ASCII digits. `(?u:.)` is one character of any
/// alphabet, and a class such as `[é]` is written `(?u:[é])`. The syntax is that of the
/// crate `regex`, which has no look-ahead and no back-references.
///
/// ```
/// use mc_meta::Pattern;
/// let pattern = Pattern::new(r"^layer[0-9]+/.*block(7|8)$")?;
/// assert!(pattern.is_match("layer12/head0/block7"));
/// assert_eq!(pattern.literal_prefix(), Some("layer"));
/// # Ok::<(), mc_meta::PatternError>(())
/// ```
#[derive(Clone)]
pub struct Pattern {
    text: Box<str>,
    prefix: Option<Box<str>>,
    dfa: dense::DFA<Vec<u32>>,
}

impl Pattern {
    /// Reads a pattern. Takes microseconds for the usual ones; call it before any lock
    /// is taken, since a malicious one takes up to half a second.
    ///
    /// # Errors
    /// [`PatternError`] when the pattern is malformed, or would cost too much.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        if text.len() > MAX_PATTERN_LEN {
            return Err(PatternError::TooLong { len: text.len() });
        }
        let hir = regex_syntax::ParserBuilder::new()
            .unicode(false)
            .utf8(false)
            .nest_limit(MAX_NESTING)
            .build()
            .parse(text)
            .map_err(|error| malformed(&error))?;
        Ok(Self { text: text.into(), prefix: anchored_literal(&hir), dfa: determinized(&hir)? })
    }

    /// Returns whether the pattern matches anywhere in `key`. One step for each byte, up to the
    /// first match.
    #[must_use]
    pub fn is_match(&self, key: &str) -> bool {
        self.dfa
            .try_search_fwd(&Input::new(key).earliest(true))
            .expect("the automaton has no byte to give up at, and searches start unanchored")
            .is_some()
    }

    /// The text that every matching key begins with, when the pattern begins with `^` and a
    /// literal.
    #[must_use]
    pub fn literal_prefix(&self) -> Option<&str> {
        self.prefix.as_deref()
    }

    /// The pattern as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pattern").field(&self.text).finish()
    }
}

/// Why a pattern is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PatternError {
    /// The text is longer than [`MAX_PATTERN_LEN`].
    #[error("the pattern has {len} bytes; the limit is {MAX_PATTERN_LEN}")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// Groups and repetitions nest too deep.
    #[error("the pattern nests deeper than {MAX_NESTING} levels; flatten its groups")]
    TooNested,
    /// Look-ahead or look-behind.
    #[error("look-ahead and look-behind are not offered (at byte {at}); match the text itself")]
    LookAround {
        /// Where it is, in bytes.
        at: usize,
    },
    /// A reference to an earlier group.
    #[error("back-references are not offered (at byte {at}); write the text out")]
    BackReference {
        /// Where it is, in bytes.
        at: usize,
    },
    /// Anything else that is not a pattern.
    #[error("malformed pattern at byte {at}: {reason}")]
    Syntax {
        /// Where, in bytes.
        at: usize,
        /// The fault at that place.
        reason: Box<str>,
    },
    /// Too much would have to be kept in mind while matching.
    #[error(
        "the pattern needs too many states; anchor it with ^, shorten its repetitions, or say \
         what they repeat, as in [^/]{{1,40}} for .{{1,40}}"
    )]
    TooComplex,
}

impl PatternError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        ErrorCode::InvalidParams
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        false
    }
}

fn malformed(error: &regex_syntax::Error) -> PatternError {
    let syntax = |at, reason: &dyn fmt::Display| PatternError::Syntax {
        at,
        reason: reason.to_string().into(),
    };
    match error {
        regex_syntax::Error::Parse(error) => {
            let at = error.span().start.offset;
            match error.kind() {
                ast::ErrorKind::NestLimitExceeded(_) => PatternError::TooNested,
                ast::ErrorKind::UnsupportedLookAround => PatternError::LookAround { at },
                ast::ErrorKind::UnsupportedBackreference => PatternError::BackReference { at },
                kind => syntax(at, kind),
            }
        }
        regex_syntax::Error::Translate(error) => syntax(error.span().start.offset, error.kind()),
        other => syntax(0, other),
    }
}

fn determinized(hir: &Hir) -> Result<dense::DFA<Vec<u32>>, PatternError> {
    let nfa = thompson::Compiler::new()
        .configure(
            thompson::Config::new()
                .utf8(false)
                .which_captures(WhichCaptures::None)
                .nfa_size_limit(Some(MAX_NFA_BYTES)),
        )
        .build_from_hir(hir)
        .map_err(|_| PatternError::TooComplex)?;
    dense::Builder::new()
        .configure(
            dense::Config::new()
                // Drops what lies behind a match: fewer states than keeping every one.
                .match_kind(MatchKind::LeftmostFirst)
                .start_kind(StartKind::Unanchored)
                .determinize_size_limit(Some(MAX_SCRATCH_BYTES))
                .dfa_size_limit(Some(MAX_DFA_BYTES)),
        )
        .build_from_nfa(&nfa)
        .map_err(|_| PatternError::TooComplex)
}

/// The literal that follows an anchor at the pattern's beginning.
fn anchored_literal(hir: &Hir) -> Option<Box<str>> {
    let HirKind::Concat(parts) = hir.kind() else { return None };
    let (anchor, rest) = parts.split_first()?;
    if *anchor.kind() != HirKind::Look(Look::Start) {
        return None;
    }
    let literal = leading_literal(rest.first()?)?;
    // A class of bytes may cut a character in two.
    let text = match core::str::from_utf8(literal) {
        Ok(text) => text,
        Err(error) => core::str::from_utf8(&literal[..error.valid_up_to()]).ok()?,
    };
    (!text.is_empty()).then(|| text.into())
}

fn leading_literal(mut hir: &Hir) -> Option<&[u8]> {
    loop {
        hir = match hir.kind() {
            HirKind::Literal(literal) => return Some(&literal.0),
            HirKind::Capture(group) => &group.sub,
            HirKind::Concat(parts) => parts.first()?,
            _ => return None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn matches(pattern: &str, key: &str) -> bool {
        Pattern::new(pattern).unwrap().is_match(key)
    }

    #[test]
    fn a_pattern_is_searched_for_unless_anchored() {
        assert!(matches("block", "layer0/block7"));
        assert!(!matches("^block", "layer0/block7"));
        assert!(matches("^layer[0-9]+/.*(7|8)$", "layer0/block7"));
        assert!(!matches("^layer[0-9]+/.*(7|8)$", "layer0/block79"));
        assert!(matches("", "x"));
        assert!(matches(r"(?i)LLAMA\b", "meta-llama/3.1"));
        assert!(!matches(r"\d", "layer-٣"));
        assert!(matches(r"^(?u:.\W)$", "é/"));
        assert!(matches("^(?u:[éè])", "è/"));
        assert!(matches("^é+/$", "éé/"));
        assert!(matches("^...$", "é/"), "as bytes");
    }

    #[test]
    fn patterns_that_blow_backtrackers_up_match_in_linear_time() {
        let key = "a".repeat(1024);
        assert!(!matches("(a*)*b", &key));
        assert!(!matches("(a|aa)+$b", &key));
        assert!(!matches("(x+x+)+y", &"x".repeat(1024)));
        assert!(matches("(.*a){50}", &key));
    }

    #[test]
    fn patterns_too_large_to_build_are_refused() {
        let bytes: String = (0..128).map(|byte| format!("\\x{byte:02x}|")).collect();
        for pattern in [
            "a{1000}{1000}",
            "(?:(?:(?:a{0,30}){0,30}){0,30}){0,30}",
            "(?:){1000}{1000}a{4294967295}",
            "a.{20}b",
            ".{0,200}a.{0,200}b",
            &format!("(?:(?:a?){{2,200}}b?){{0,4}}!(?:{bytes}q)z"),
            &format!("(?:[^z]{{4000}}|{bytes}q)z"),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap_err(), PatternError::TooComplex, "{pattern}");
        }
    }

    #[test]
    fn the_longest_key_can_be_written_as_a_pattern() {
        let key: String = (0..mc_types::MAX_KEY_LEN).map(|at| ["a", "b", "."][at % 3]).collect();
        let pattern = format!("^{}$", key.replace('.', r"\."));
        assert!(matches(&pattern, &key));
        assert!(!matches(&pattern, &key.replacen('.', "x", 1)));
    }

    #[test]
    fn refusals_say_where_and_why() {
        let refused = |pattern: &str| Pattern::new(pattern).unwrap_err();
        assert_eq!(refused("ab(?=c)"), PatternError::LookAround { at: 2 });
        assert_eq!(refused(r"(a)\1"), PatternError::BackReference { at: 3 });
        let nested = "(".repeat(1000) + &")".repeat(1000);
        assert_eq!(refused(&nested), PatternError::TooNested);
        assert_eq!(refused(&"(?:a)*".repeat(1000)), PatternError::TooLong { len: 6000 });
        assert!(matches!(refused("layer[0"), PatternError::Syntax { at: 5, .. }));
        assert!(matches!(refused("[é]"), PatternError::Syntax { .. }));
        assert_eq!(refused("(").code(), ErrorCode::InvalidParams);
    }

    #[test]
    fn an_anchored_literal_is_a_prefix() {
        for (pattern, prefix) in [
            ("^layer0/.*", Some("layer0/")),
            ("^(layer)[0-9]", Some("layer")),
            ("^((lay)er)$", Some("lay")),
            (r"^a\.b|^a\.c", None),
            ("layer", None),
            ("(?m)^layer", None),
            ("^layer|block", None),
            ("(?i)^layer", None),
            ("^$", None),
            ("^é", Some("é")),
            (r"^a\xc3\xa9", Some("aé")),
            (r"^a\xc3[\xa0-\xaf]", Some("a")),
            (r"^\xc3[\xa0-\xaf]", None),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap().literal_prefix(), prefix, "{pattern}");
        }
    }

    /// A pattern that is easy to match slowly.
    #[derive(Clone, Debug)]
    enum Simple {
        Byte(char),
        Class(bool, Vec<char>),
        Any,
        Begin,
        End,
        Sequence(Vec<Simple>),
        Either(Vec<Simple>),
        Repeat(Box<Simple>, usize, Option<usize>),
    }

    impl fmt::Display for Simple {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Self::Byte(byte) => write!(f, "{byte}"),
                Self::Class(negated, bytes) => {
                    let negation = if *negated { "^" } else { "" };
                    write!(f, "[{negation}{}]", bytes.iter().collect::<String>())
                }
                Self::Any => f.write_str("."),
                Self::Begin => f.write_str("^"),
                Self::End => f.write_str("$"),
                Self::Sequence(parts) => {
                    f.write_str("(?:")?;
                    parts.iter().try_for_each(|part| write!(f, "{part}"))?;
                    f.write_str(")")
                }
                Self::Either(parts) => {
                    let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
                    write!(f, "({})", parts.join("|"))
                }
                Self::Repeat(part, least, Some(most)) => write!(f, "(?:{part}){{{least},{most}}}"),
                Self::Repeat(part, 0, None) => write!(f, "(?:{part})*"),
                Self::Repeat(part, least, None) => write!(f, "(?:{part}){{{least},}}"),
            }
        }
    }

    impl Simple {
        /// Every place in `text` where a match that begins at `from` can end.
        fn ends(&self, text: &[u8], from: usize) -> BTreeSet<usize> {
            let one =
                |holds: bool| if holds { BTreeSet::from([from + 1]) } else { BTreeSet::new() };
            let here = |holds: bool| if holds { BTreeSet::from([from]) } else { BTreeSet::new() };
            let next = text.get(from).copied();
            match self {
                Self::Byte(byte) => one(next == Some(*byte as u8)),
                Self::Class(negated, bytes) => {
                    one(next.is_some_and(|next| bytes.iter().any(|b| *b as u8 == next) != *negated))
                }
                Self::Any => one(next.is_some_and(|next| next != b'\n')),
                Self::Begin => here(from == 0),
                Self::End => here(from == text.len()),
                Self::Sequence(parts) => parts.iter().fold(here(true), |ends, part| {
                    ends.into_iter().flat_map(|end| part.ends(text, end)).collect()
                }),
                Self::Either(parts) => parts.iter().flat_map(|p| p.ends(text, from)).collect(),
                Self::Repeat(part, least, most) => {
                    let step = |ends: &BTreeSet<usize>| -> BTreeSet<usize> {
                        ends.iter().flat_map(|end| part.ends(text, *end)).collect()
                    };
                    let mut ends = (0..*least).fold(here(true), |ends, _| step(&ends));
                    // No more steps than bytes lead anywhere new.
                    for _ in 0..most.map_or(text.len() + 1, |most| most - least) {
                        let more = step(&ends);
                        ends.extend(more);
                    }
                    ends
                }
            }
        }

        fn is_found_in(&self, text: &[u8]) -> bool {
            (0..=text.len()).any(|from| !self.ends(text, from).is_empty())
        }
    }

    fn simple() -> impl Strategy<Value = Simple> {
        let byte = || prop::sample::select(vec!['a', 'b', 'c', '\n']);
        let leaf = prop_oneof![
            6 => byte().prop_map(Simple::Byte),
            2 => (any::<bool>(), prop::collection::vec(byte(), 1..3))
                .prop_map(|(negated, bytes)| Simple::Class(negated, bytes)),
            2 => Just(Simple::Any),
            1 => Just(Simple::Begin),
            1 => Just(Simple::End),
        ];
        leaf.prop_recursive(4, 16, 3, |part| {
            prop_oneof![
                prop::collection::vec(part.clone(), 0..4).prop_map(Simple::Sequence),
                prop::collection::vec(part.clone(), 1..4).prop_map(Simple::Either),
                (part.clone(), 0..3usize).prop_map(|(p, n)| Simple::Repeat(Box::new(p), n, None)),
                (part, 0..3usize, 0..3usize).prop_map(|(part, least, more)| {
                    Simple::Repeat(Box::new(part), least, Some(least + more))
                }),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn matches_what_a_slow_matcher_matches(
            pattern in simple(),
            keys in prop::collection::vec(prop::collection::vec(0..4usize, 0..9), 1..8),
        ) {
            let compiled = Pattern::new(&pattern.to_string()).unwrap();
            for key in keys {
                let key: String = key.into_iter().map(|at| ['a', 'b', 'c', '\n'][at]).collect();
                let expected = pattern.is_found_in(key.as_bytes());
                prop_assert_eq!(compiled.is_match(&key), expected, "{} in {:?}", pattern, key);
                if let Some(prefix) = compiled.literal_prefix() {
                    prop_assert!(!expected || key.starts_with(prefix));
                }
            }
        }

        #[test]
        fn any_text_is_a_pattern_or_refused(
            text in prop::collection::vec(
                prop::sample::select("()[]{}|*+?^$\\.-,:=!<>&~ab09dwub xPé\n\u{0}".chars().collect::<Vec<_>>()),
                0..40,
            ),
        ) {
            let text: String = text.into_iter().collect();
            match Pattern::new(&text) {
                Ok(pattern) => prop_assert_eq!(pattern.as_str(), text),
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }
}
