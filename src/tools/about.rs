//! `platform_info`: what this platform is, and what the caller may do on it.
//!
//! The same question gives the same bytes. Never tells of another caller, nor the names of what is withheld.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::arguments;
use super::connections::{Connections, Listed, NoArguments};
use super::{CallContext, Definition, DefinitionSource, Prepared, Tool, ToolError, ToolResult};
use crate::dispatch::Limits;

/// What `platform_info` says of the platform itself.
#[derive(Debug, Clone)]
pub struct About {
    /// The server's name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// One sentence.
    pub description: String,
    /// What the model should know before it uses the tools.
    pub instructions: String,
    /// What an acknowledgement of the log means: `fsync` and its kin.
    pub ack: String,
    /// Bounds of a call.
    pub limits: Limits,
}

/// The tool.
pub struct PlatformInfo {
    definition: Definition,
    shared: Arc<Shared>,
}

struct Shared {
    about: About,
    tools: Vec<&'static str>,
    connections: Arc<Connections>,
}

impl PlatformInfo {
    /// `tools` are the names of all tools, this one included.
    #[must_use]
    pub fn new(about: About, mut tools: Vec<&'static str>, connections: Arc<Connections>) -> Self {
        tools.sort_unstable();
        Self { definition: definition(), shared: Arc::new(Shared { about, tools, connections }) }
    }
}

impl Tool for PlatformInfo {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn parse(&self, arguments: &RawValue) -> Result<Box<dyn Prepared>, ToolError> {
        let NoArguments {} = arguments::read("platform_info", &[], arguments)?;
        Ok(Box::new(Asked { shared: Arc::clone(&self.shared) }))
    }
}

struct Asked {
    shared: Arc<Shared>,
}

#[derive(Serialize)]
struct Info<'a> {
    name: &'a str,
    version: &'a str,
    description: &'a str,
    user: &'a str,
    roles: &'a [String],
    persona: &'a str,
    tools: Reach<&'static str>,
    connections: Reach<Listed>,
    limits: InfoLimits,
    audit: Audit<'a>,
    instructions: &'a str,
}

#[derive(Serialize)]
struct Reach<T> {
    allowed: Vec<T>,
    withheld: usize,
}

#[derive(Serialize)]
struct InfoLimits {
    call_timeout_ms: u64,
    calls_in_flight_max: usize,
    recorded_arguments_bytes_max: usize,
}

#[derive(Serialize)]
struct Audit<'a> {
    ack: &'a str,
    recorded: &'static str,
}

impl Prepared for Asked {
    fn connection(&self) -> Option<&str> {
        None
    }

    fn run(self: Box<Self>, context: CallContext) -> BoxFuture<'static, Result<ToolResult, ToolError>> {
        Box::pin(std::future::ready(self.info(&context)))
    }
}

impl Asked {
    fn info(&self, context: &CallContext) -> Result<ToolResult, ToolError> {
        let Shared { about, tools, connections } = self.shared.as_ref();
        let allowed: Vec<&'static str> =
            tools.iter().copied().filter(|name| context.persona.tools.allows(name)).collect();
        let withheld = tools.len() - allowed.len();
        let (reached, unreached) = connections.listed(&context.persona);
        ToolResult::from_serialize(&Info {
            name: &about.name,
            version: &about.version,
            description: &about.description,
            user: &context.principal.user_name,
            roles: &context.principal.roles,
            persona: &context.persona.name,
            tools: Reach { allowed, withheld },
            connections: Reach { allowed: reached, withheld: unreached },
            limits: InfoLimits {
                call_timeout_ms: u64::try_from(about.limits.call_timeout.as_millis()).unwrap_or(u64::MAX),
                calls_in_flight_max: about.limits.calls_in_flight_max,
                recorded_arguments_bytes_max: about.limits.recorded_arguments_bytes_max,
            },
            audit: Audit {
                ack: &about.ack,
                recorded: "Every call is durable in the log before it is answered, with its arguments and its purpose.",
            },
            instructions: &about.instructions,
        })
    }
}

fn definition() -> Definition {
    let reach = |items: serde_json::Value| {
        json!({
            "type": "object",
            "properties": {"allowed": {"type": "array", "items": items}, "withheld": {"type": "integer", "description": "How many exist that you may not use."}},
            "required": ["allowed", "withheld"],
            "additionalProperties": false
        })
    };
    DefinitionSource {
        name: "platform_info",
        title: "About this platform",
        description: "Says who you are here, which tools and connections you may use, the limits, and how calls are \
                      recorded. Cheap: reads nothing."
            .to_owned(),
        input_schema: json!({"type": "object", "properties": {}, "additionalProperties": false}),
        output_schema: json!({
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "version": {"type": "string"},
                "description": {"type": "string"},
                "user": {"type": "string"},
                "roles": {"type": "array", "items": {"type": "string"}},
                "persona": {"type": "string"},
                "tools": reach(json!({"type": "string"})),
                "connections": reach(Listed::schema()),
                "limits": {
                    "type": "object",
                    "properties": {
                        "call_timeout_ms": {"type": "integer", "description": "From receipt to the end of a call."},
                        "calls_in_flight_max": {"type": "integer", "description": "Calls that run at once, of all callers."},
                        "recorded_arguments_bytes_max": {"type": "integer", "description": "Larger arguments are recorded as digest and size."}
                    },
                    "required": ["call_timeout_ms", "calls_in_flight_max", "recorded_arguments_bytes_max"],
                    "additionalProperties": false
                },
                "audit": {
                    "type": "object",
                    "properties": {"ack": {"type": "string", "description": "What durable means here."}, "recorded": {"type": "string"}},
                    "required": ["ack", "recorded"],
                    "additionalProperties": false
                },
                "instructions": {"type": "string"}
            },
            "required": ["name", "version", "description", "user", "roles", "persona", "tools", "connections", "limits", "audit", "instructions"],
            "additionalProperties": false
        }),
        annotations: json!({"readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false}),
    }
    .prepare("platform", false)
}
