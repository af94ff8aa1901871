//! Sends spans to a collector by OTLP over HTTP, as the variables of OpenTelemetry say.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::env;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use thiserror::Error;
use ureq::Agent;

/// How long a collector may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the last spans may take at the end of the process.
const LAST: Duration = Duration::from_secs(2);

/// The longest answer of a collector that is read.
const MAX_ANSWER: u64 = 64 << 10;

/// The samplers, and whether they need a share.
const SAMPLERS: [(&str, bool); 6] = [
    ("always_on", false),
    ("always_off", false),
    ("traceidratio", true),
    ("parentbased_always_on", false),
    ("parentbased_always_off", false),
    ("parentbased_traceidratio", true),
];

fn names() -> String {
    SAMPLERS.map(|(name, _)| name).join(", ")
}

/// Why spans are not sent, although the variables say where to.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OtlpError {
    /// The collector is to be asked in another way than this crate can.
    #[error(
        "{variable}={protocol} is not supported; write http/protobuf, which collectors serve at port 4318"
    )]
    Protocol {
        /// The variable that says so.
        variable: &'static str,
        /// Its value.
        protocol: String,
    },
    /// There is no such sampler.
    #[error("OTEL_TRACES_SAMPLER={name} is not supported; write one of {}", names())]
    Sampler {
        /// Its name.
        name: String,
    },
    /// The sampler needs a share.
    #[error("OTEL_TRACES_SAMPLER={name} needs OTEL_TRACES_SAMPLER_ARG, a number from 0 to 1")]
    Share {
        /// The sampler.
        name: String,
    },
    /// A variable cannot be understood.
    #[error("the variables OTEL_EXPORTER_OTLP_* cannot be understood: {0}")]
    Settings(#[from] opentelemetry_otlp::ExporterBuildError),
    /// Another tracer has the spans of this process.
    #[error("the spans of this process go to another tracer already")]
    Installed,
}

/// Sends the spans of this process, until it is dropped: that sends the last ones, which takes two seconds at the
/// most.
#[derive(Debug)]
pub struct Exporting(SdkTracerProvider);

impl Drop for Exporting {
    fn drop(&mut self) {
        // The process ends, whether a collector is there or not.
        let _ = self.0.shutdown_with_timeout(LAST);
    }
}

/// Begins to send the spans of this process, which is called `service` unless `OTEL_SERVICE_NAME` says otherwise.
/// Returns `None`, and does nothing, unless `OTEL_EXPORTER_OTLP_ENDPOINT` or
/// `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is set, and if `OTEL_SDK_DISABLED` is `true` or `OTEL_TRACES_EXPORTER` is
/// `none`.
///
/// The other variables count as OpenTelemetry defines them: those of the exporter (`…_HEADERS`, `…_TIMEOUT`), of
/// sampling (`OTEL_TRACES_SAMPLER`, `OTEL_TRACES_SAMPLER_ARG`), of the resource (`OTEL_RESOURCE_ATTRIBUTES`) and of the
/// queue (`OTEL_BSP_*`), whose spans are dropped when it is full.
///
/// # Errors
/// [`OtlpError`].
pub fn export_from_env(service: &str) -> Result<Option<Exporting>, OtlpError> {
    let is_set =
        |name| env::var_os(name).is_some_and(|value: std::ffi::OsString| !value.is_empty());
    let is = |name, wanted| env::var(name).is_ok_and(|value| value.eq_ignore_ascii_case(wanted));
    let is_wanted =
        is_set("OTEL_EXPORTER_OTLP_ENDPOINT") || is_set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    if !is_wanted || is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
        return Ok(None);
    }
    for variable in ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"] {
        match env::var(variable) {
            Ok(protocol) if protocol == "http/protobuf" => break,
            Ok(protocol) if !protocol.is_empty() => {
                return Err(OtlpError::Protocol { variable, protocol });
            }
            _ => {}
        }
    }
    check_sampler()?;
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_http_client(Collector::new())
        .build()?;
    let resource = match is_set("OTEL_SERVICE_NAME") {
        true => Resource::builder(),
        false => Resource::builder().with_service_name(service.to_owned()),
    };
    let provider = SdkTracerProvider::builder()
        .with_resource(resource.build())
        .with_batch_exporter(exporter)
        .build();
    if !crate::install(&provider) {
        return Err(OtlpError::Installed);
    }
    Ok(Some(Exporting(provider)))
}

/// Refuses what would sample everything by mistake.
fn check_sampler() -> Result<(), OtlpError> {
    let name = env::var("OTEL_TRACES_SAMPLER").unwrap_or_default();
    if name.is_empty() {
        return Ok(());
    }
    let Some((_, needs_share)) = SAMPLERS.iter().find(|(known, _)| *known == name) else {
        return Err(OtlpError::Sampler { name });
    };
    let share = env::var("OTEL_TRACES_SAMPLER_ARG").ok().and_then(|text| text.parse::<f64>().ok());
    let is_share = share.is_some_and(|share| (0.0..=1.0).contains(&share));
    if *needs_share && !is_share { Err(OtlpError::Share { name }) } else { Ok(()) }
}

/// The way to a collector, for the thread that sends spans.
#[derive(Debug)]
struct Collector {
    agent: Agent,
    /// Whether the last spans did not arrive, which is logged once.
    is_away: AtomicBool,
}

impl Collector {
    fn new() -> Self {
        let config =
            Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false);
        Self { agent: config.build().into(), is_away: AtomicBool::new(false) }
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (head, body) = request.into_parts();
        let answer = self.agent.run(Request::from_parts(head, &*body))?;
        let (head, mut body) = answer.into_parts();
        let body = body.with_config().limit(MAX_ANSWER).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let to = request.uri().clone();
        let sent = self.send(request);
        let failure = match &sent {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("it answered {}", answer.status())),
            Err(error) => Some(error.to_string()),
        };
        let was_away = self.is_away.swap(failure.is_some(), Ordering::Relaxed);
        match failure {
            Some(error) if !was_away => {
                tracing::warn!(%to, error, "cannot send spans to the collector; they are dropped until it is back");
            }
            None if was_away => tracing::info!(%to, "the collector takes spans again"),
            _ => {}
        }
        Ok(sent?)
    }
}
