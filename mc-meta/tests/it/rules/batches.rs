//! Batch forms answer as single calls in a row do.

use mc_meta::{GetError, PutEnd, PutFinishError, PutStart, PutStartError, RemoveError};

use super::*;

#[test]
fn a_batch_answers_in_order_and_each_item_for_itself() {
    let master = master(&[100]);
    let config = ReplicateConfig::default();
    let start = |name, lens| PutStart { key: key(name), slice_lengths: lens, config: &config };
    let puts = [start("a", &[10][..]), start("b", &[]), start("a", &[10]), start("c", &[200])];
    let grants = master.batch_put_start(at(0), WRITER, &puts);
    assert!(grants[0].is_ok());
    assert!(matches!(grants[1], Err(PutStartError::Invalid(_))));
    assert!(matches!(grants[2], Err(PutStartError::InProgress { .. })), "twice in one batch");
    assert!(matches!(grants[3], Err(PutStartError::TooLarge { .. })));

    let put = grants[0].as_ref().unwrap().handle;
    let other = handle(Generation::new(7));
    let end = |name, handle| PutEnd::new(key(name), handle);
    let ends = [end("b", put), end("a", put), end("a", put), end("a", other)];
    let ended = master.batch_put_end(at(0), WRITER, &ends);
    let expected = [Err(PutFinishError::NotFound), Ok(()), Ok(()), Err(PutFinishError::NotOpen)];
    assert_eq!(ended, expected);

    let keys = [key("b"), key("a")];
    assert_eq!(master.batch_exist(at(0), &keys), [false, true]);
    let lists = master.batch_get_replica_list(at(0), &keys);
    assert_eq!(lists[0].as_ref().unwrap_err(), &GetError::NotFound);
    assert_eq!(lists[1].as_ref().unwrap().generation, put.generation);

    let keys = [key("a"), key("a"), key("b")];
    let removed = master.batch_remove(at(0), &keys, true);
    let gone = Err(RemoveError::NotFound);
    assert_eq!(removed, [Ok(()), gone, gone]);
    assert_eq!(master.batch_remove(at(0), &[], false), []);
}

#[test]
fn a_batch_of_revocations_gives_the_space_back() {
    let master = master(&[100]);
    let [a, b] = ["a", "b"].map(|name| start(&master, at(0), name, 10).unwrap().handle);
    let revoke = |name, handle| PutRevoke { key: key(name), handle, late: LateWrites::Impossible };
    let foreign = PutHandle { token: PutToken::from_u64(7), ..a };
    let puts = [revoke("a", a), revoke("b", b), revoke("a", a), revoke("a", foreign)];
    let revoked = master.batch_put_revoke(at(0), WRITER, &puts);
    assert_eq!(
        revoked,
        [Ok(()), Ok(()), Err(PutFinishError::NotFound), Err(PutFinishError::NotFound)]
    );
    assert_eq!(master.report().totals.used, 0);
}
