//! Answers of a master's port, errors included.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::{DEADLINE, Master};

/// An answer of the port.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }

    /// Its body, which is no error.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.status, 200, "{}", self.body);
        self.body
    }

    /// The parameter `after` of the next page.
    pub(crate) fn next(&self) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix("x-next-after: "))
    }

    #[track_caller]
    pub(crate) fn assert_failed(&self, status: u16, code: i32, says: &str) {
        assert_eq!(self.status, status, "{}", self.body);
        let body = self.json();
        assert_eq!(
            (&body["success"], &body["error_code"]),
            (&json!(false), &json!(code)),
            "{body}"
        );
        let message = body["error_message"].as_str().expect("a text");
        assert!(message.contains(says), "{message}");
    }
}

/// Sends a request and reads the answer to its end.
fn send(master: &Master, (method, target): (&str, &str), lines: &str, body: &str) -> Answer {
    let len = match body.len() {
        0 => String::new(),
        len => format!("content-length: {len}\r\n"),
    };
    let request = format!(
        "{method} {target} HTTP/1.1\r\nhost: x\r\n{lines}{len}connection: close\r\n\r\n{body}"
    );
    let address = master.metrics.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).expect("a listener");
    stream.set_read_timeout(Some(DEADLINE)).expect("a time");
    stream.write_all(request.as_bytes()).expect("a reader");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer in time");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// Asks a master for a page, with a token unless that is empty.
pub(crate) fn ask(master: &Master, method: &str, target: &str, token: &str) -> Answer {
    let shown = match token {
        "" => String::new(),
        token => format!("authorization: Bearer {token}\r\n"),
    };
    send(master, (method, target), &shown, "")
}

/// Asks a master to change something, with a body, a token unless that is empty, and further lines of the head.
pub(crate) fn change(
    master: &Master,
    to: (&str, &str),
    (token, lines): (&str, &str),
    body: &str,
) -> Answer {
    let shown = match token {
        "" => lines.to_owned(),
        token => format!("authorization: Bearer {token}\r\n{lines}"),
    };
    send(master, to, &shown, body)
}

/// Asks a master for a page.
pub(crate) fn get(master: &Master, target: &str) -> Answer {
    ask(master, "GET", target, "")
}
