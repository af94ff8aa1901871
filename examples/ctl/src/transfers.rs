//! The verbs that have nodes copy and move objects: of one object as a task, of whole segments as a drain job.

use std::process::ExitCode;
use std::time::Duration;

use mc_cli::{duration, table, visible};
use mc_meta::{JobStatus, TaskKind, TaskStatus};
use mc_rpc::{DrainJob, Task, TaskReport, TenantKey};
use mc_store::Client;
use mc_types::{ByteSize, ErrorCode, JobId, KeyRef, TaskId};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::args::{Drain, Waiting};
use crate::error::CtlError;
use crate::text::{names, print};

/// Pauses between two questions whether something is done: each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(crate) async fn drain(client: &Client, drain: &Drain) -> Result<ExitCode, CtlError> {
    let master = client.master();
    match drain {
        Drain::Start { segments, of, to, concurrency, waiting } => {
            let mut names = segments.clone();
            if let Some(endpoint) = of {
                names.extend(segments_at(client, endpoint).await?);
            }
            let [segments, targets] =
                [&names, to].map(|names| names.iter().map(String::as_str).collect::<Vec<_>>());
            let id = master.create_drain_job(&segments, &targets, *concurrency).await?;
            print(format!("job {id}\n").as_bytes())?;
            if waiting.wait {
                wait_for_job(client, id, waiting.timeout).await
            } else {
                Ok(ExitCode::SUCCESS)
            }
        }
        Drain::List { json } => {
            let known = master.list_drain_jobs().await?;
            let text = match json {
                true => known.jobs.iter().map(|job| job_json(job).to_string() + "\n").collect(),
                false => jobs_text(&known.jobs, known.left_out),
            };
            print(text.as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
        Drain::Wait { id, timeout } => wait_for_job(client, *id, *timeout).await,
        Drain::Cancel { id } => {
            let status = master.cancel_drain_job(*id).await?;
            print(format!("job {id} is {}\n", status.as_str()).as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Takes new objects into segments again that were drained.
pub(crate) async fn reopen(client: &Client, names: &[String]) -> Result<ExitCode, CtlError> {
    for name in names {
        client.master().reopen_segment(name).await?;
        print(format!("{} takes new objects\n", visible(name)).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The segments of the node that serves bytes at an endpoint.
async fn segments_at(client: &Client, endpoint: &str) -> Result<Vec<String>, CtlError> {
    let report = client.cluster_report().await?;
    let there = report.segments.iter().filter(|segment| {
        segment.endpoint.as_str() == endpoint || segment.client.to_string() == endpoint
    });
    let names: Vec<String> = there.map(|segment| segment.name.to_string()).collect();
    if names.is_empty() {
        return Err(CtlError::NoNode { endpoint: endpoint.to_owned() });
    }
    Ok(names)
}

async fn wait_for_job(
    client: &Client,
    id: JobId,
    timeout: Option<Duration>,
) -> Result<ExitCode, CtlError> {
    let mut pauses = Pauses::within(timeout);
    loop {
        let job = client.master().query_drain_job(id).await?;
        if job.status.is_final() {
            print(job_line(&job).as_bytes())?;
            let is_done = job.status == JobStatus::Succeeded;
            return Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        if !pauses.pause().await {
            print(job_line(&job).as_bytes())?;
            return Err(CtlError::StillAtWork { what: format!("job {id}") });
        }
    }
}

pub(crate) async fn copy(
    client: &Client,
    key: &str,
    to: &[String],
    waiting: &Waiting,
) -> Result<ExitCode, CtlError> {
    let targets: Vec<&str> = to.iter().map(String::as_str).collect();
    let id = client.master().create_copy_task(&object(key)?, &targets).await?;
    begun(client, id, waiting).await
}

pub(crate) async fn move_(
    client: &Client,
    key: &str,
    from: &str,
    to: &str,
    waiting: &Waiting,
) -> Result<ExitCode, CtlError> {
    let id = client.master().create_move_task(&object(key)?, from, to).await?;
    begun(client, id, waiting).await
}

fn object(key: &str) -> Result<TenantKey<'_>, CtlError> {
    let valid = KeyRef::new(key);
    Ok(valid.map_err(|source| CtlError::BadKey { key: key.to_owned(), source })?.into())
}

async fn begun(client: &Client, id: TaskId, waiting: &Waiting) -> Result<ExitCode, CtlError> {
    print(format!("task {id}\n").as_bytes())?;
    if waiting.wait { task(client, id, waiting, false).await } else { Ok(ExitCode::SUCCESS) }
}

/// Shows a task, once it is over if that is wanted.
pub(crate) async fn task(
    client: &Client,
    id: TaskId,
    waiting: &Waiting,
    as_json: bool,
) -> Result<ExitCode, CtlError> {
    let mut pauses = Pauses::within(waiting.timeout);
    let (report, is_in_time) = loop {
        let report = client.master().query_task(id).await?;
        if report.status.is_final() || !waiting.wait {
            break (report, true);
        }
        if !pauses.pause().await {
            break (report, false);
        }
    };
    let text = match as_json {
        true => task_json(&report).to_string() + "\n",
        false => task_text(&report),
    };
    print(text.as_bytes())?;
    match report.status {
        _ if !is_in_time => Err(CtlError::StillAtWork { what: format!("task {id}") }),
        TaskStatus::Failed => Ok(ExitCode::FAILURE),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Lists the tasks that the master knows.
pub(crate) async fn tasks(client: &Client, as_json: bool) -> Result<ExitCode, CtlError> {
    let (mut tasks, mut after) = (Vec::new(), None);
    loop {
        let page = match client.master().list_tasks(after, 0).await {
            Err(error) if error.code() == ErrorCode::NotSupported => {
                return Err(CtlError::NoTaskList(error));
            }
            page => page?,
        };
        tasks.extend(page.tasks);
        match page.next_after {
            // An id that does not advance would list for ever.
            Some(next) if after < Some(next) => after = Some(next),
            _ => break,
        }
    }
    let rank = |status: TaskStatus| match status {
        TaskStatus::Processing => 0,
        TaskStatus::Pending => 1,
        TaskStatus::Failed | TaskStatus::Success => 2,
    };
    tasks.sort_by_key(|report| (rank(report.status), report.task.age, report.task.id));
    let text = match as_json {
        true => tasks.iter().map(|report| task_json(report).to_string() + "\n").collect(),
        false => tasks_text(&tasks),
    };
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Pauses that grow until a time is over.
pub(crate) struct Pauses {
    end: Option<Instant>,
    next: Duration,
}

impl Pauses {
    pub(crate) fn within(limit: Option<Duration>) -> Self {
        // One that is further away than can be told is never.
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        Self { end, next: FIRST_PAUSE }
    }

    /// Waits a while; `false` when the time is over.
    pub(crate) async fn pause(&mut self) -> bool {
        let left = self.end.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return false;
        }
        tokio::time::sleep(left.map_or(self.next, |left| self.next.min(left))).await;
        self.next = (self.next * 2).min(LONGEST_PAUSE);
        true
    }
}

/// How far a job is, in a line.
fn job_line(job: &DrainJob) -> String {
    let bytes = ByteSize::bytes(job.moved_bytes);
    let mut line =
        format!("job {} is {}: {} objects moved ({bytes})", job.id, job.status.as_str(), job.moved);
    if job.blocked > 0 {
        line += &format!(", {} wait for readers or room", job.blocked);
    }
    if job.failed > 0 {
        line += &format!(", {} cannot be moved", job.failed);
    }
    if !job.outcome.is_empty() {
        line += &format!("; {}", visible(&job.outcome));
    }
    line + "\n"
}

fn jobs_text(jobs: &[DrainJob], left_out: u32) -> String {
    let rows: Vec<[String; 8]> = jobs
        .iter()
        .map(|job| {
            [
                job.id.to_string(),
                job.status.as_str().to_owned(),
                job.moved.to_string(),
                ByteSize::bytes(job.moved_bytes).to_string(),
                job.active.to_string(),
                job.blocked.to_string(),
                duration(job.unchanged),
                names(&job.segments),
            ]
        })
        .collect();
    let head =
        ["JOB", "STATE", ">MOVED", ">BYTES", ">MOVING", ">BLOCKED", ">UNCHANGED", "SEGMENTS"];
    let more = if left_out > 0 { format!("and {left_out} more\n") } else { String::new() };
    table(head, &rows) + &more
}

fn job_json(job: &DrainJob) -> Value {
    json!({
        "id": job.id.to_string(),
        "status": job.status.as_str(),
        "segments": job.segments,
        "targets": job.targets,
        "moved": job.moved,
        "moved_bytes": job.moved_bytes,
        "active": job.active,
        "blocked": job.blocked,
        "failed": job.failed,
        "age_ms": job.age.as_millis() as u64,
        "unchanged_ms": job.unchanged.as_millis() as u64,
        "outcome": job.outcome,
    })
}

/// The work of a task, in words.
fn work(kind: &TaskKind) -> String {
    let (from, to) = (visible(kind.source()), visible(&kind.targets().join(" ")));
    format!("{} from {from} to {to}", task_name(kind))
}

fn task_text(report: &TaskReport) -> String {
    let facts = [
        ("task", report.task.id.to_string()),
        ("state", report.status.to_string()),
        ("work", work(&report.task.kind)),
        ("key", visible(report.task.key.as_str())),
        ("by", report.client.to_string()),
        ("age", duration(report.task.age)),
        ("outcome", visible(&report.outcome)),
    ];
    let shown = facts.iter().filter(|(_, value)| !value.is_empty());
    shown.map(|(name, value)| format!("{name:<8} {value}\n")).collect()
}

fn tasks_text(tasks: &[TaskReport]) -> String {
    let rows: Vec<[String; 8]> = tasks
        .iter()
        .map(|report| {
            let Task { id, kind, key, age, .. } = &report.task;
            [
                id.to_string(),
                report.status.to_string(),
                duration(*age),
                task_name(kind).into(),
                visible(kind.source()),
                names(kind.targets()),
                visible(key.as_str()),
                visible(&report.outcome),
            ]
        })
        .collect();
    table(["TASK", "STATE", ">AGE", "WORK", "FROM", "TO", "KEY", "OUTCOME"], &rows)
}

const fn task_name(kind: &TaskKind) -> &'static str {
    match kind {
        TaskKind::Copy { .. } => "copy",
        TaskKind::Move { .. } => "move",
    }
}

fn task_json(report: &TaskReport) -> Value {
    json!({
        "id": report.task.id.to_string(),
        "status": report.status.to_string(),
        "work": work(&report.task.kind),
        "from": report.task.kind.source(),
        "to": report.task.kind.targets(),
        "tenant": report.task.tenant.as_str(),
        "key": report.task.key.as_str(),
        "client": report.client.to_string(),
        "age_ms": report.task.age.as_millis() as u64,
        "unchanged_ms": report.unchanged.as_millis() as u64,
        "outcome": report.outcome,
    })
}
