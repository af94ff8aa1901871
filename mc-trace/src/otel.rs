//! Spans that go to a tracer of OpenTelemetry.

use core::fmt::{self, Display};
use core::pin::Pin;
use core::task;
use std::sync::OnceLock;

use opentelemetry::global::{BoxedTracer, ObjectSafeTracerProvider};
use opentelemetry::trace::{
    SpanContext, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceState, Tracer as _,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use pin_project_lite::pin_project;

use crate::{Kind, TraceContext, Value};

/// Receives the spans of this process.
static TRACER: OnceLock<BoxedTracer> = OnceLock::new();

/// Sends the spans of this process to a tracer of `provider`, which decides what is sampled. Returns whether it
/// does: `false` if another provider was installed before, which keeps them.
pub fn install(provider: &dyn ObjectSafeTracerProvider) -> bool {
    let scope = InstrumentationScope::builder("mc-store").with_version(env!("CARGO_PKG_VERSION"));
    TRACER.set(BoxedTracer::new(provider.boxed_tracer(scope.build()))).is_ok()
}

/// A step of a request: from its creation until it is dropped. Empty where the trace is not sampled, or
/// nothing is [installed](install).
#[derive(Default)]
pub struct Span(Option<Context>);

impl Span {
    /// No span.
    pub const NONE: Self = Self(None);

    /// Begins a step that no peer asked for: a part of the current span, also one of the program
    /// around this library; otherwise a trace of its own, if the sampler wants it.
    #[must_use]
    pub fn root(name: &'static str, kind: Kind) -> Self {
        TRACER
            .get()
            .map_or(Self::NONE, |tracer| Self::begin(tracer, name, kind, &Context::current()))
    }

    /// Begins a part of the current span; nothing where that is not recorded.
    #[must_use]
    pub fn child(name: &'static str, kind: Kind) -> Self {
        TRACER.get().map_or(Self::NONE, |tracer| {
            let parent =
                Context::map_current(|current| is_sampled(current).then(|| current.clone()));
            parent.map_or(Self::NONE, |parent| Self::begin(tracer, name, kind, &parent))
        })
    }

    /// Begins what a peer asked for with `parent`.
    #[must_use]
    pub fn remote(name: &'static str, kind: Kind, parent: TraceContext) -> Self {
        let Some(tracer) = TRACER.get().filter(|_| parent.is_sampled()) else { return Self::NONE };
        Self::begin(tracer, name, kind, &remote(parent))
    }

    fn begin(tracer: &BoxedTracer, name: &'static str, kind: Kind, parent: &Context) -> Self {
        let kind = match kind {
            Kind::Internal => SpanKind::Internal,
            Kind::Client => SpanKind::Client,
            Kind::Server => SpanKind::Server,
        };
        let span = tracer.span_builder(name).with_kind(kind).start_with_context(tracer, parent);
        let context = parent.with_span(span);
        Self(is_sampled(&context).then_some(context))
    }

    /// Returns whether it is recorded. Where it is not, what [`set`](Self::set) would be told need not be
    /// found out.
    #[must_use]
    pub const fn is_recording(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the context that a message bears which this span sends.
    #[must_use]
    pub fn context(&self) -> Option<TraceContext> {
        self.0.as_ref().and_then(told)
    }

    /// Sets an attribute.
    pub fn set(&self, key: &'static str, value: impl Into<Value>) {
        if let Some(context) = &self.0 {
            let value: opentelemetry::Value = match value.into() {
                Value::Number(number) => number.into(),
                Value::Flag(flag) => flag.into(),
                Value::Text(text) => text.into(),
            };
            context.span().set_attribute(KeyValue::new(key, value));
        }
    }

    /// Notes that the step failed, for this reason.
    pub fn failed(&self, why: impl Display) {
        if let Some(context) = &self.0 {
            context.span().set_status(Status::error(why.to_string()));
        }
    }

    /// Makes it the current span whenever `future` runs.
    pub fn within<F: Future>(&self, future: F) -> Within<F> {
        Within { context: self.0.clone(), future }
    }

    /// Makes it the current span while `work` runs.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = self.0.clone().map(Context::attach);
        work()
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Span").field(&self.context()).finish()
    }
}

/// Returns the context of the current span, if it is recorded.
#[must_use]
pub fn current() -> Option<TraceContext> {
    TRACER.get().and_then(|_| Context::map_current(told))
}

/// Makes the current span that of `future` too, which another task or thread may run.
pub fn carried<F: Future>(future: F) -> Within<F> {
    let context = TRACER
        .get()
        .and_then(|_| Context::map_current(|current| is_sampled(current).then(|| current.clone())));
    Within { context, future }
}

/// Returns whether spans go anywhere.
#[must_use]
pub fn is_on() -> bool {
    TRACER.get().is_some()
}

/// Makes a span of another tracer of this thread, such as that of another language, the current one while
/// `work` runs.
pub fn under<T>(parent: TraceContext, work: impl FnOnce() -> T) -> T {
    let _entered = remote(parent).attach();
    work()
}

/// The context of a span that is not ours.
fn remote(span: TraceContext) -> Context {
    let flags = if span.is_sampled() { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
    let (trace, number) = (span.trace().into(), span.span().into());
    let span = SpanContext::new(trace, number, flags, true, TraceState::NONE);
    Context::new().with_remote_span_context(span)
}

fn is_sampled(context: &Context) -> bool {
    let span = context.span();
    span.span_context().is_valid() && span.span_context().is_sampled()
}

fn told(context: &Context) -> Option<TraceContext> {
    let span = context.span();
    let span = span.span_context();
    let trace = u128::from_be_bytes(span.trace_id().to_bytes());
    let number = u64::from_be_bytes(span.span_id().to_bytes());
    TraceContext::new(trace, number, true).filter(|_| span.is_sampled())
}

pin_project! {
    /// A future that runs within a span.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless they are polled"]
    pub struct Within<F> {
        context: Option<Context>,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> task::Poll<F::Output> {
        let within = self.project();
        let _entered = within.context.clone().map(Context::attach);
        within.future.poll(cx)
    }
}
