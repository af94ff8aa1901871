//! Work on the caller's threads.

use crate::vocabulary::lock::{Mutex, rank};

/// Has a task executed with each number below the given one, on whatever threads, and returns when
/// that is done. Numbers that it leaves out are executed by the caller afterwards.
pub type Executor<'a> = dyn Fn(usize, &(dyn Fn(usize) + Sync)) + 'a;

/// Executes every task where it is called.
pub(crate) fn one_by_one(count: usize, task: &(dyn Fn(usize) + Sync)) {
    (0..count).for_each(task);
}

/// A piece of work.
enum TaskState<T, R> {
    Waits(T),
    Runs,
    Done(R),
}

/// Does the work on each of `items`, and returns the results in the order of the items.
///
/// # Panics
/// When the executor hides the panic of a task.
pub(crate) fn for_each<T: Send, R: Send>(
    executor: &Executor<'_>,
    items: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let pieces: Vec<_> = items
        .into_iter()
        .map(|item| Mutex::<_, { rank::PIECE }>::new(TaskState::Waits(item)))
        .collect();
    executor(pieces.len(), &|number| {
        let Some(piece) = pieces.get(number) else { return };
        let taken = core::mem::replace(&mut *piece.lock(), TaskState::Runs);
        *piece.lock() = match taken {
            TaskState::Waits(item) => TaskState::Done(work(item)),
            // Twice the same number.
            other => other,
        };
    });
    let done = |piece: Mutex<_, { rank::PIECE }>| match piece.into_inner() {
        TaskState::Waits(item) => work(item),
        TaskState::Done(result) => result,
        TaskState::Runs => panic!("a task of the rebuild has panicked"),
    };
    pieces.into_iter().map(done).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_done_once_whatever_the_executor_does() {
        let lazy = |_: usize, _: &(dyn Fn(usize) + Sync)| {};
        let twice = |count: usize, task: &(dyn Fn(usize) + Sync)| {
            (0..count + 3).chain(0..count).for_each(task);
        };
        for executor in [&one_by_one as &Executor<'_>, &lazy, &twice] {
            assert_eq!(for_each(executor, 0..5, |n| n * 2), [0, 2, 4, 6, 8]);
        }
    }
}
