//! A model whose turns are timed, counted and traced.

use std::sync::Arc;

use async_trait::async_trait;
use tracing::field::Empty;
use tracing::{Instrument, info_span};

use super::conversation::Conversation;
use super::{LanguageModel, LlmError, Turn};
use crate::domain::event::OutputSink;
use crate::telemetry::SPAN_TARGET;
use crate::telemetry::metrics::{Metrics, Outcome};
use crate::telemetry::traces::number;

/// A model whose turns are timed, counted and traced.
pub(super) struct Observed {
    model: Arc<dyn LanguageModel>,
    metrics: Metrics,
}

impl Observed {
    pub(super) fn new(model: Arc<dyn LanguageModel>, metrics: Metrics) -> Self {
        Self { model, metrics }
    }
}

#[async_trait]
impl LanguageModel for Observed {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn protocol(&self) -> &'static str {
        self.model.protocol()
    }

    fn place(&self) -> String {
        self.model.place()
    }

    fn vision(&self) -> bool {
        self.model.vision()
    }

    async fn turn(&self, conversation: &Conversation, sink: &OutputSink) -> Result<Turn, LlmError> {
        // names of OpenTelemetry's semantic conventions for generative AI
        let span = info_span!(
            target: SPAN_TARGET,
            "model turn",
            gen_ai.operation.name = "chat",
            gen_ai.request.model = self.name(),
            gen_ai.usage.input_tokens = Empty,
            gen_ai.usage.output_tokens = Empty,
            outcome = Empty,
            otel.kind = "client",
            otel.status_code = Empty
        );
        let timed = self.metrics.turn(self.name());
        let turn = self.model.turn(conversation, sink).instrument(span.clone()).await;
        let outcome = Outcome::of(&turn);
        match &turn {
            Ok(turn) => {
                let usage = &turn.usage;
                self.metrics.tokens(self.name(), usage.input_tokens, usage.output_tokens);
                span.record("gen_ai.usage.input_tokens", number(usage.input_tokens));
                span.record("gen_ai.usage.output_tokens", number(usage.output_tokens));
            }
            Err(_) => {
                span.record("otel.status_code", "ERROR");
            }
        }
        span.record("outcome", outcome.word());
        timed.done(outcome);
        turn
    }
}
