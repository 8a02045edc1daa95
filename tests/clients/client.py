"""A client on the official Python SDK, MCP 2026-07-28: calls the sample data's tools and finds its calls in the audit.

python client.py URL KEY [COMMAND ARG...]   URL is the server's base or its MCP endpoint; with a COMMAND it is started and
spoken to over stdio, and URL is for the audit alone. Prints one JSON line; exit 0 when every check held, 1 when one did not.
Must not know anything of the server but its public interface.
"""

import json
import sys
import time
import traceback
import uuid
from datetime import datetime, timezone
from urllib.parse import urljoin, urlsplit

import anyio
import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import INVALID_PARAMS, Implementation

PROTOCOL_VERSION = "2026-07-28"
# The acceptance bound: an answered call is in the audit this soon.
AUDIT_WITHIN_MS = 1000
# The generator is seeded, so this is the same on every machine.
SAMPLE_ORDERS = 32000
INFO = Implementation(name="annals-test-client-py", version="1.0.0")


class CheckFailed(Exception):
    """The server did not do what it promises."""


def check(holds, message):
    if not holds:
        raise CheckFailed(message)


def equal(found, wanted, message):
    check(found == wanted, f"{message}: {found!r}, not {wanted!r}")


def now():
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Audit:
    """Reads the audit over REST."""

    def __init__(self, base, http):
        self.base, self.http = base, http
        self.took_ms = {}

    async def get(self, path, **query):
        response = await self.http.get(urljoin(self.base, f"/api/v1/admin/audit/{path}"), params=query)
        equal(response.status_code, 200, f"GET {path} {query}: {response.text}")
        return response.json()

    async def row(self, name, query, wanted, answered_at):
        """Polls until a row passes `wanted`, from the moment its answer arrived."""
        while True:
            page = await self.get("events", limit=1000, **query)
            took_ms = round((time.perf_counter() - answered_at) * 1000)
            rows = [row for row in page["data"] if wanted(row)]
            check(len(rows) <= 1, f"{name}: {len(rows)} rows instead of one: {rows}")
            check(took_ms <= AUDIT_WITHIN_MS, f"{name}: row {rows} {took_ms} ms after the answer; page {page}")
            if rows:
                self.took_ms[name] = took_ms
                return rows[0]
            await anyio.sleep(0.015)


def call_id(answer):
    """The id under which an answer says that its call is recorded."""
    if isinstance(answer, MCPError):
        return (answer.error.data or {}).get("call_id")
    return (answer.meta or {}).get("io.annals/call_id")


class Run:
    """One run's calls, each with a purpose of its own by which its row is found."""

    def __init__(self, client, audit, transport):
        self.client, self.audit, self.transport = client, audit, transport
        self.run = str(uuid.uuid4())
        self.started_at = now()

    async def recorded(self, name, tool, arguments, expected):
        """Makes one call and requires its one audit row with the expected columns; returns answer and row."""
        purpose = f"{self.run} {name}"
        try:
            answer = await self.client.call_tool(tool, {**arguments, "purpose": purpose})
        except MCPError as error:
            answer = error
        answered_at = time.perf_counter()
        query = {"tool_name": tool, "start_time": self.started_at}
        row = await self.audit.row(name, query, lambda row: row["purpose"] == purpose, answered_at)
        common = {"tool_name": tool, "transport": self.transport, "source": "mcp", "persona": "admin"}
        # A stdio process is a session in the record; over HTTP this revision has none.
        equal(row["session_id"] is None, self.transport == "http", f"{name}: session of {row}")
        for column, value in {**common, **expected}.items():
            check(column in row, f"{name}: no column {column} in {row}")
            equal(row[column], value, f"{name}: column {column} of {row}")
        equal(row["id"], call_id(answer), f"{name}: the answer names its record")
        check(row["user_id"], f"{name}: user_id is empty")
        check(isinstance(row["duration_ms"], int) and row["duration_ms"] >= 0, f"{name}: duration_ms of {row}")
        return answer, row


def structured(result):
    """A tool's structured result, which its text must repeat."""
    check(not isinstance(result, MCPError), f"the call was refused: {result!r}")
    check(not result.is_error, f"the tool answers: {result}")
    equal(result.result_type, "complete", "resultType")
    equal([block.type for block in result.content], ["text"], "content")
    equal(json.loads(result.content[0].text), result.structured_content, "text against structuredContent")
    return result.structured_content


def process(command, key):
    """A server that is started and spoken to over stdio."""
    return StdioServerParameters(command=command[0], args=command[1:], env={"ANNALS_API_KEY": key})


async def refuses_an_unknown_key_over_stdio(command, audit):
    asked = now()
    answered = False
    try:
        async with Client(process(command, "annals_" + "0" * 43), mode=PROTOCOL_VERSION, client_info=INFO) as client:
            await client.list_tools()
            answered = True
    except Exception:
        pass
    check(not answered, "an unknown key gets no tools")
    query = {"event_kind": "auth.failed", "start_time": asked}
    await audit.row("auth_failed", query, lambda row: True, time.perf_counter())


async def refuses_an_unknown_key(endpoint, audit):
    asked = now()
    headers = {"Authorization": "Bearer annals_" + "0" * 43}
    async with httpx2.AsyncClient(headers=headers) as http:
        client = Client(streamable_http_client(endpoint, http_client=http), mode=PROTOCOL_VERSION, client_info=INFO)
        async with client:
            try:
                answer = await client.list_tools()
            except MCPError as error:
                answer = error
    check(isinstance(answer, MCPError), f"an unknown key gets an error, not {answer}")
    query = {"event_kind": "auth.failed", "start_time": asked}
    await audit.row("auth_failed", query, lambda row: True, time.perf_counter())


async def main(url, key, *command):
    base = urljoin(url, "/")
    endpoint = urljoin(base, "/mcp") if urlsplit(url).path in ("", "/") else url
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=30) as http:
        audit = Audit(base, http)
        if command:
            await refuses_an_unknown_key_over_stdio(command, audit)
            server, transport = process(command, key), "stdio"
        else:
            await refuses_an_unknown_key(endpoint, audit)
            server, transport = streamable_http_client(endpoint, http_client=http), "http"
        started_at = now()
        async with Client(server, client_info=INFO) as client:
            await script(client, audit, transport)
        if command:
            query = {"event_kind": "session.ended", "start_time": started_at}
            ended = await audit.row("session_ended", query, lambda row: row["user_id"] is not None, time.perf_counter())
            end = json.dumps(await audit.get(f"events/{ended['event_id']}"))
            check(ended["transport"] == "stdio" and "client_delete" in end, f"end of the session: {end}")
            del audit.took_ms["session_ended"]
    return {
        "client": "python", "protocol_version": PROTOCOL_VERSION, "orders": SAMPLE_ORDERS, "audit_ms": audit.took_ms,
    }


# What the columns that were found and described lead to.
STORY = (
    "SELECT reason, count(*) AS returns FROM returns WHERE returned_on >= '2025-11-01' AND returned_on < '2025-12-01' "
    "AND reason = 'leaks' GROUP BY reason"
)
STORY_ROWS = [["leaks", 50]]


async def script(client, audit, transport):
    # `auto` probes `server/discover` and falls back to `initialize`; so this says that the era took hold.
    equal(client.protocol_version, PROTOCOL_VERSION, "protocol version in effect")
    check(PROTOCOL_VERSION in client.session.discover_result.supported_versions, "discover names the version")
    equal(client.server_info and client.server_info.name, "annals", "server info of discover")
    check(client.instructions, "the server gives instructions")

    listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    for name in (
        "platform_info", "list_connections", "search", "fetch", "sql_tables", "sql_describe", "sql_query",
    ):
        check(name in listed, f"{name} is not listed: {sorted(listed)}")
    check(listed["sql_query"].annotations.read_only_hint, "sql_query is annotated read-only")
    check("purpose" in listed["sql_query"].input_schema["properties"], "sql_query advertises purpose")

    run = Run(client, audit, transport)
    completed = {"event_kind": "tool_call.completed", "success": True, "authorized": True, "error_message": None}

    info, _ = await run.recorded(
        "platform_info", "platform_info", {}, {**completed, "toolkit_kind": "platform"}
    )
    check(isinstance(structured(info)["version"], str), "platform_info tells the version")

    connections, _ = await run.recorded("list_connections", "list_connections", {}, completed)
    kinds = {each["name"]: each["kind"] for each in structured(connections)["connections"]}
    equal(kinds.get("sample"), "postgres", f"the sample connection among {kinds}")

    found, _ = await run.recorded(
        "search", "search", {"intent": "reasons of a product's returns", "sources": ["tables"]},
        {**completed, "toolkit_kind": "platform", "connection": None},
    )
    table = structured(found)["results"][0]
    equal(table["id"], "table:sample/public.returns", f"the first of {structured(found)}")
    equal(structured(found)["unavailable"], [], "connections that could not be looked at")

    described, _ = await run.recorded(
        "sql_describe", "sql_describe", {"table": table["title"], "connection": table["connection"]},
        {**completed, "toolkit_kind": "sql", "connection": "sample"},
    )
    columns = [column["name"] for column in structured(described)["columns"]]
    check({"reason", "returned_on"} <= set(columns), f"columns that answer the question among {columns}")

    story, _ = await run.recorded(
        "sql_query_story", "sql_query", {"connection": table["connection"], "sql": STORY},
        {**completed, "connection": "sample"},
    )
    equal(structured(story)["rows"], STORY_ROWS, "rows of the story")

    fetched, _ = await run.recorded(
        "fetch", "fetch", {"id": table["id"]}, {**completed, "toolkit_kind": "platform", "connection": "sample"}
    )
    metadata = structured(fetched)["metadata"]
    equal(metadata["connection"], "sample", "the table's connection")
    equal([column["name"] for column in metadata["columns"]], columns, "columns, as they were described")

    arguments = {"connection": "sample", "sql": "SELECT count(*) AS orders FROM orders"}
    counted, row = await run.recorded(
        "sql_query", "sql_query", arguments,
        {
            **completed, "toolkit_kind": "sql", "connection": "sample", "parameters": arguments,
            "content_blocks": 1,
        },
    )
    answer = structured(counted)
    equal(answer["columns"], [{"name": "orders", "type": "bigint"}], "columns")
    equal(answer["rows"], [[SAMPLE_ORDERS]], "rows")
    equal(row["response_chars"], len(counted.content[0].text), "response_chars")

    error, denied = await run.recorded(
        "unknown_tool", "no_such_tool", {},
        {"event_kind": "tool_call.denied", "success": False, "authorized": False, "toolkit_kind": None},
    )
    check(isinstance(error, MCPError), f"an unknown tool gets an error, not {error}")
    equal(error.error.code, INVALID_PARAMS, f"code of {error.error}")
    equal((error.error.data or {}).get("code"), "unknown_tool", f"data of {error.error}")
    check(denied["error_message"], "the refusal has its reason")

    forbidden, _ = await run.recorded(
        "forbidden_sql", "sql_query", {"connection": "sample", "sql": "DELETE FROM orders"},
        {"event_kind": "tool_call.failed", "success": False, "connection": "sample"},
    )
    check(not isinstance(forbidden, MCPError) and forbidden.is_error, f"a refused statement: {forbidden}")
    refusal = json.loads(forbidden.content[0].text)
    check(refusal.get("category") in ("authz", "validation"), f"category of {refusal}")
    check(all(refusal.get(part) for part in ("code", "message", "hint")), f"parts of {refusal}")

    whole = await audit.get(f"events/{row['id']}")
    check(arguments["sql"] in json.dumps(whole), f"the event holds the statement as it was sent: {whole}")


def cause(error):
    """The first plain exception in a task group's."""
    while isinstance(error, BaseException) and getattr(error, "exceptions", None):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python client.py URL KEY [COMMAND ARG...]")
    try:
        summary = anyio.run(main, *sys.argv[1:])
    except Exception as error:
        print(json.dumps({"ok": False, "client": "python", "error": str(cause(error))}))
        traceback.print_exc()
        sys.exit(1)
    print(json.dumps({"ok": True, **summary}))
