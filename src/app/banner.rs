//! What a person sees when the server is ready: where things are, and how to connect a client.

use std::net::SocketAddr;
use std::path::Path;

/// What is said when the banner has to wait for the audit store.
pub(super) fn early(url: &str) -> String {
    format!(
        "Annals {} takes calls and records them at {url}/mcp\n\
         The audit store is still starting; {url}/readyz tells. The rest follows when it is up.\n\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// What the banner is made of.
pub(super) struct Banner<'a> {
    pub(super) url: &'a str,
    pub(super) metrics: SocketAddr,
    pub(super) data_dir: &'a Path,
    /// Shown once, on the first start.
    pub(super) first_key: Option<&'a str>,
    pub(super) sample: bool,
}

impl std::fmt::Display for Banner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let url = self.url;
        let key = self.first_key.unwrap_or("YOUR_KEY");
        writeln!(f, "Annals {} is ready.\n", env!("CARGO_PKG_VERSION"))?;
        writeln!(f, "  MCP endpoint    {url}/mcp")?;
        writeln!(f, "  Audit           {url}/api/v1/admin/audit/events")?;
        writeln!(f, "  Metrics         http://{}/metrics", self.metrics)?;
        writeln!(f, "  Data directory  {}", self.data_dir.display())?;
        match self.first_key {
            Some(key) => writeln!(
                f,
                "  Admin API key   {key}\n                  shown this once; only its SHA-256 is kept\n"
            )?,
            None => writeln!(f, "  API keys        annals key create --name NAME --role analyst\n")?,
        }
        writeln!(f, "Claude Code:")?;
        writeln!(
            f,
            "  claude mcp add --transport http annals {url}/mcp --header \"Authorization: Bearer {key}\"\n"
        )?;
        writeln!(f, "MCP Inspector (Node.js 22.19 or later):")?;
        writeln!(f, "  npx @modelcontextprotocol/inspector --cli {url}/mcp --transport http \\")?;
        writeln!(f, "    --header \"Authorization: Bearer {key}\" --method tools/list\n")?;
        if self.sample {
            writeln!(f, "A call, and its record:")?;
            writeln!(
                f,
                "  curl -s {url}/mcp -H \"Authorization: Bearer {key}\" -H 'Content-Type: application/json' \\"
            )?;
            writeln!(
                f,
                "    -H 'Accept: application/json, text/event-stream' -H 'MCP-Protocol-Version: 2026-07-28' \\"
            )?;
            writeln!(f, "    -H 'Mcp-Method: tools/call' -H 'Mcp-Name: sql_query' -d '{CALL}'")?;
        } else {
            writeln!(f, "The record of every call:")?;
        }
        writeln!(
            f,
            "  curl -s '{url}/api/v1/admin/audit/events?limit=5' -H \"Authorization: Bearer {key}\"\n"
        )
    }
}

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"sql_query","arguments":{"sql":"SELECT count(*) FROM orders","purpose":"first look"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
