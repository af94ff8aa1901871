//! Calls about keys: existence, sizes, removal.

use mc_store::{MAX_KEY_LEN, Stat};
use pyo3::prelude::*;

use super::Store;
use super::arguments::{Flag, Texts};
use super::session::Session;
use crate::error::{Failure, code_of, count_of};

/// Returns whether `key` has a valid length. An invalid key has no object.
fn is_valid(key: &str) -> bool {
    (1..=MAX_KEY_LEN).contains(&key.len())
}

fn check_valid(key: &str) -> Result<(), Failure> {
    if is_valid(key) { Ok(()) } else { Err(Failure::NOT_FOUND) }
}

#[pymethods]
impl Store {
    /// is_exist(self, key: str) -> int
    ///
    /// Returns 1 when key has a readable value, 0 when not, and a negative number when the lookup
    /// fails. A lease protects the value from eviction.
    fn is_exist(&self, py: Python<'_>, key: &str) -> PyResult<i32> {
        let found = self.with(py, |session| {
            Ok(is_valid(key) && session.backend.wait(|store| store.exist(key))?)
        });
        found.map(flag_of)
    }

    /// batch_is_exist(self, keys: list[str]) -> list[int]
    ///
    /// is_exist for many keys at once.
    fn batch_is_exist(&self, py: Python<'_>, keys: Texts) -> PyResult<Vec<i32>> {
        self.flags(py, &keys, |session, keys| session.backend.wait(|store| store.batch_exist(keys)))
    }

    /// probe_key(self, key: str) -> int
    ///
    /// is_exist without a lease: the value may be evicted or removed a moment later, and the lookup does
    /// not count as a use of it.
    fn probe_key(&self, py: Python<'_>, key: &str) -> PyResult<i32> {
        let found = self.with(py, |session| {
            Ok(is_valid(key) && session.backend.wait(|store| store.probe(key))?)
        });
        found.map(flag_of)
    }

    /// batch_probe_key(self, keys: list[str]) -> list[int]
    ///
    /// probe_key for many keys at once.
    fn batch_probe_key(&self, py: Python<'_>, keys: Texts) -> PyResult<Vec<i32>> {
        self.flags(py, &keys, |session, keys| session.backend.wait(|store| store.batch_probe(keys)))
    }

    /// get_size(self, key: str) -> int
    ///
    /// Returns the length in bytes of the value of key; -704 when there is none.
    fn get_size(&self, py: Python<'_>, key: &str) -> PyResult<i64> {
        self.count(py, |session| {
            check_valid(key)?;
            session.backend.wait(|store| store.size(key))
        })
    }

    /// _batch_stat(self, keys: list[str]) -> list[tuple[int, int]]
    ///
    /// Returns each value's length, or a negative number, and the generation of its put, for
    /// _get_ranges_of. Leases protect the values from eviction.
    #[pyo3(name = "_batch_stat")]
    fn batch_stat(&self, py: Python<'_>, keys: Texts) -> PyResult<Vec<(i64, u64)>> {
        let found = self.with_each(py, &keys, |session, keys| {
            of_valid(keys, Err(Failure::NOT_FOUND), |keys| {
                session.backend.wait(|store| store.batch_stat(keys))
            })
        })?;
        let numbers = |found: Result<Stat, Failure>| {
            let generation = found.map_or(0, |stat| stat.generation.as_u64());
            (count_of(found.map(|stat| stat.len)), generation)
        };
        Ok(found.into_iter().map(numbers).collect())
    }

    /// remove(self, key: str, force: bool = False) -> int
    ///
    /// Removes the value of key. Returns 0; -704 when there is none; and, unless forced, -706 for a
    /// value that a lease protects.
    #[pyo3(signature = (key, force = Flag(false)))]
    #[pyo3(text_signature = "($self, key, force=False)")]
    fn remove(&self, py: Python<'_>, key: &str, force: Flag) -> PyResult<i32> {
        self.code(py, |session| {
            check_valid(key)?;
            session.backend.wait(|store| store.remove(key, force.0))
        })
    }

    /// batch_remove(self, keys: list[str], force: bool = False) -> list[int]
    ///
    /// remove for many keys at once, with one result for each.
    #[pyo3(signature = (keys, force = Flag(false)))]
    #[pyo3(text_signature = "($self, keys, force=False)")]
    fn batch_remove(&self, py: Python<'_>, keys: Texts, force: Flag) -> PyResult<Vec<i32>> {
        let removed = self.with_each(py, &keys, |session, keys| {
            of_valid(keys, Err(Failure::NOT_FOUND), |keys| {
                session.backend.wait(|store| store.batch_remove(keys, force.0))
            })
        })?;
        Ok(removed.into_iter().map(code_of).collect())
    }

    /// remove_by_regex(self, regex_pattern: str, force: bool = False) -> int
    ///
    /// Removes all values whose keys contain a match of the pattern. Without force, skips values
    /// that a lease protects. Returns the number of values removed; -600 for an invalid pattern.
    #[pyo3(signature = (regex_pattern, force = Flag(false)))]
    #[pyo3(text_signature = "($self, regex_pattern, force=False)")]
    fn remove_by_regex(&self, py: Python<'_>, regex_pattern: &str, force: Flag) -> PyResult<i64> {
        self.count(py, |session| {
            session.backend.wait(|store| store.remove_by_regex(regex_pattern, force.0))
        })
    }

    /// remove_all(self, force: bool = False) -> int
    ///
    /// Removes all values; without force, skips values that a lease protects. Returns the number of
    /// values removed.
    #[pyo3(signature = (force = Flag(false)))]
    #[pyo3(text_signature = "($self, force=False)")]
    fn remove_all(&self, py: Python<'_>, force: Flag) -> PyResult<i64> {
        self.count(py, |session| session.backend.wait(|store| store.remove_all(force.0)))
    }
}

impl Store {
    /// Asks a question that is answered with yes or no about each valid key; the answer about an
    /// invalid one is no.
    fn flags(
        &self,
        py: Python<'_>,
        keys: &Texts,
        ask: impl FnOnce(&Session, &[&str]) -> Result<Vec<bool>, Failure> + Send,
    ) -> PyResult<Vec<i32>> {
        let found = self.with_each(py, keys, |session, keys| {
            let ask = |keys: &[&str]| Ok(ask(session, keys)?.into_iter().map(Ok).collect());
            of_valid::<_, Failure>(keys, Ok(false), ask)
        })?;
        Ok(found.into_iter().map(flag_of).collect())
    }
}

fn flag_of(found: Result<bool, Failure>) -> i32 {
    found.map_or_else(Failure::code, i32::from)
}

/// Asks for something of each valid key; an invalid one has no object, which is `missing`. All have
/// the failure of the whole question.
fn of_valid<T: Copy, E: Into<Failure>>(
    keys: &[&str],
    missing: Result<T, Failure>,
    ask: impl FnOnce(&[&str]) -> Result<Vec<Result<T, E>>, Failure>,
) -> Vec<Result<T, Failure>> {
    let asked: Vec<&str> = keys.iter().copied().filter(|key| is_valid(key)).collect();
    let mut found = match ask(&asked) {
        Ok(found) => found.into_iter(),
        Err(failure) => return vec![Err(failure); keys.len()],
    };
    let answer = |key: &&str| match is_valid(key) {
        true => found.next().map_or(missing, |found| found.map_err(Into::into)),
        false => missing,
    };
    keys.iter().map(answer).collect()
}
