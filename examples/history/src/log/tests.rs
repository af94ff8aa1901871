//! Logs that are read back, and logs that are refused.

use std::path::Path;

use super::*;
use crate::{Moment, Operation, Window};

const HEADER: &str = r#"{"type":"header","format":"mc-history","version":1}"#;

fn read(lines: &[&str]) -> Result<History, LogError> {
    let text: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
    read_text(&text)
}

fn read_text(text: &str) -> Result<History, LogError> {
    let mut history = History::default();
    history.read_from(text.as_bytes(), Path::new("a.log"))?;
    Ok(history)
}

#[track_caller]
fn refused(lines: &[&str], at: u64, why: &str) {
    let error = read(lines).unwrap_err();
    let LogError::Line { line, source, .. } = &error else { panic!("{error:?}") };
    assert_eq!((*line, error.to_string()), (at, format!("a.log:{at}")));
    let source = source.to_string();
    assert!(source.contains(why), "{source}");
}

fn moment(nanos: u64) -> Moment {
    Moment::from_nanos(nanos)
}

#[test]
fn what_is_written_is_read_back() {
    let value = ValueId { writer: 3, version: 9 };
    let actions = [
        (Action::Put(value), Outcome::Existing),
        (Action::Upsert(value), Outcome::Unknown),
        (Action::Remove, Outcome::Absent),
        (Action::Remove, Outcome::Refused),
        (Action::Found(value), Outcome::Done),
        (Action::Missed, Outcome::Done),
        (Action::WrongBytes, Outcome::Done),
        (Action::Exist(true), Outcome::Done),
        (Action::Exist(false), Outcome::Done),
    ];
    let operation = |(action, outcome)| {
        let end = if outcome == Outcome::Unknown { Moment::NEVER } else { moment(9) };
        Operation { client: 1, key: 2, action, outcome, begin: moment(5), end }
    };
    let operations: Vec<Operation> = actions.into_iter().map(operation).collect();
    let loss = Window { from: moment(3), to: moment(4) };
    let mut log = LogWriter::new(Vec::new()).unwrap();
    log.name(2, "a \"name\"\n").unwrap();
    log.loss(loss).unwrap();
    operations.iter().for_each(|operation| log.operation(operation).unwrap());
    let text = String::from_utf8(log.into_inner()).unwrap();
    let history = read_text(&text).unwrap();
    assert_eq!((history.operations, history.losses), (operations, vec![loss]));
    assert_eq!(history.names[&2], "a \"name\"\n");
}

#[test]
fn a_call_without_an_end_is_unknown_and_may_be_late() {
    let value = ValueId { writer: 3, version: 9 };
    let mut log = LogWriter::new(Vec::new()).unwrap();
    let put = log.begin(1, 2, Call::Put(value), moment(5)).unwrap();
    let get = log.begin(2, 2, Call::GetRange, moment(6)).unwrap();
    log.begin(3, 2, Call::Remove, moment(7)).unwrap();
    log.begin(4, 2, Call::Exist, moment(7)).unwrap();
    log.end(get, Answer::Found(value), moment(8)).unwrap();
    log.end(put, Answer::Done, moment(9)).unwrap();
    let mut text = String::from_utf8(log.into_inner()).unwrap();
    text += r#"{"type":"end","id":2,"ans"#;
    let history = read_text(&text).unwrap();
    let operation = |client, action, outcome, begin, end| Operation {
        client,
        key: 2,
        action,
        outcome,
        begin: moment(begin),
        end,
    };
    let expected = [
        operation(2, Action::Found(value), Outcome::Done, 6, moment(8)),
        operation(1, Action::Put(value), Outcome::Done, 5, moment(9)),
        operation(3, Action::Remove, Outcome::Unknown, 7, Moment::NEVER),
    ];
    assert_eq!(history.operations, expected);
    assert_eq!((history.failed_reads, history.cut_off), (1, 1));
}

#[test]
fn lines_are_as_the_readme_shows_them() {
    let lines = [
        HEADER,
        r#"{"type":"name","key":7,"name":"history/7"}"#,
        r#"{"type":"begin","id":0,"client":1,"key":7,"call":{"put":[1,4]},"at":1000}"#,
        r#"{"type":"end","id":0,"answer":"done","at":2000}"#,
        r#"{"type":"operation","client":2,"key":7,"call":"get","answer":{"found":[1,4]},"begin":2500,"end":2600}"#,
        r#"{"type":"loss","from":2700,"to":2800}"#,
    ];
    assert_eq!(read(&lines).unwrap().operations.len(), 2);
    let readme = include_str!("../../README.md");
    lines.iter().for_each(|line| assert!(readme.contains(line), "{line}"));
}

#[test]
fn faulty_logs_are_refused_with_the_line() {
    refused(&[], 1, "no log of mc-history");
    refused(&["# notes"], 1, "no log of mc-history");
    refused(&[r#"{"format":"else","version":1}"#], 1, "no log of mc-history");
    refused(&[r#"{"type":"header","format":"mc-history"}"#], 1, "no log of mc-history");
    let newer = r#"{"type":"header","format":"mc-history","version":2,"more":true}"#;
    refused(&[newer], 1, "version 2, this program reads version 1");
    refused(&[HEADER, HEADER], 2, "second header");
    refused(&[HEADER, r#"{"type":"end","id":2,"ans"#, "{}"], 2, "format");
    refused(&[HEADER, ""], 2, "format");
    refused(&[HEADER, r#"{"type":"loss","from":5,"to":6,"x":1}"#], 2, "format");
    refused(&[HEADER, r#"{"type":"loss","from":-5,"to":6}"#], 2, "format");
    refused(&[HEADER, r#"{"type":"loss","from":7,"to":6}"#], 2, "earlier");
    refused(&[HEADER, &"x".repeat(LINE_LIMIT + 1)], 2, "longer than");
    let begin = r#"{"type":"begin","id":5,"client":1,"key":7,"call":"remove","at":1000}"#;
    refused(&[HEADER, begin, begin], 3, "begins twice");
    let end = |answer, at| format!(r#"{{"type":"end","id":5,"answer":{answer},"at":{at}}}"#);
    refused(&[HEADER, &end(r#""done""#, 1)], 2, "without having begun");
    refused(&[HEADER, begin, &end(r#""done""#, 999)], 3, "earlier");
    refused(&[HEADER, begin, &end(r#""missed""#, 1001)], 3, "Missed");
    let endless =
        r#"{"type":"operation","client":1,"key":7,"call":"remove","answer":"done","begin":1}"#;
    refused(&[HEADER, endless], 2, "Done");
    let name = |name| format!(r#"{{"type":"name","key":7,"name":"{name}"}}"#);
    refused(&[HEADER, &name("a"), &name("a"), &name("b")], 4, "key 7 is \"b\" here");
}
