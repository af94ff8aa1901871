//! The programs' pages say what the programs do.

use std::collections::BTreeSet;

use crate::support::run;

/// The flags that a program's help lists.
fn flags(program: &'static str, subcommand: &[&str]) -> BTreeSet<String> {
    let help = run(program, &[subcommand, &["--help"]].concat()).assert_ok();
    let words = help.text().lines().filter_map(|line| {
        let line = line.trim_start().trim_start_matches("-h, ").trim_start_matches("-V, ");
        line.starts_with("--").then(|| line.split([' ', '=', '[', ',']).next())?
    });
    words.map(str::to_owned).filter(|flag| flag != "--help" && flag != "--version").collect()
}

fn assert_listed(program: &str, flags: &BTreeSet<String>, page: &str) {
    let missing: Vec<_> =
        flags.iter().filter(|flag| !page.contains(&format!("`{flag}`"))).collect();
    assert!(flags.len() > 3 && missing.is_empty(), "{program}: its README lacks {missing:?}");
}

#[test]
fn every_flag_is_in_its_program_s_page() {
    let pages = [
        ("mc-master", include_str!("../../../master/README.md")),
        ("mc-node", include_str!("../../../node/README.md")),
        ("mc-check", include_str!("../../../check/README.md")),
        ("mc-stress", include_str!("../../../stress/README.md")),
        ("mc-replay", include_str!("../../../replay/README.md")),
    ];
    for (program, page) in pages {
        assert_listed(program, &flags(program, &[]), page);
    }
    let mut all = flags("mc-ctl", &[]);
    for verb in
        ["put", "get", "exist", "remove", "remove-all", "ls", "stat", "tiers", "events", "bench"]
    {
        all.extend(flags("mc-ctl", &[verb]));
    }
    assert_listed("mc-ctl", &all, include_str!("../../README.md"));
}
