//! Programs under their former names.

use std::process::Command;

use mc_testkit::{Input, Program, binary};

use crate::support::{DEADLINE, run};

#[test]
fn a_former_name_does_the_same_and_tells_the_new_one() {
    for (former, name) in [("mc-client", "mc-node"), ("mc-provider", "mc-check")] {
        let notice = format!("{former} is now called {name}; please use the new name\n");
        for args in [&["--help"], &["--version"], &["--no_such_flag"]] {
            let (before, now) = (run(former, args), run(name, args));
            assert_eq!((before.code, before.text()), (now.code, now.text()), "{former} {args:?}");
            assert_eq!(before.err, notice.clone() + &now.err);
        }
    }
}

#[test]
fn a_former_name_without_the_program_beside_it_says_what_to_install() {
    let dir = tempfile::tempdir().unwrap();
    let alone = dir.path().join("mc-client");
    std::fs::copy(binary("mc-client"), &alone).unwrap();
    let ended = Program::start(DEADLINE, &mut Command::new(alone), Input::None).finish();
    assert_eq!((ended.code, ended.out.len()), (Some(1), 0));
    assert!(ended.err.ends_with("; install it beside mc-client\n"), "{}", ended.err);
}
