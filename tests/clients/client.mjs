// A client on the official TypeScript SDK, MCP 2025-11-25: calls the sample data's tools and finds its calls in the audit.
//
// node client.mjs URL KEY [COMMAND ARG...]   URL is the server's base or its MCP endpoint; with a COMMAND it is started and
// spoken to over stdio, and URL is for the audit alone. Prints one JSON line; exit 0 when every check held, 1 when one did
// not. Must not know anything of the server but its public interface.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';

// scripts/test-tools.sh puts the SDK there.
const tools = createRequire(new URL('../../target/tools/package.json', import.meta.url));
const sdk = path => import(pathToFileURL(tools.resolve(`@modelcontextprotocol/sdk/${path}`)).href);
const { Client } = await sdk('client/index.js');
const { StdioClientTransport } = await sdk('client/stdio.js');
const { StreamableHTTPClientTransport } = await sdk('client/streamableHttp.js');

const PROTOCOL_VERSION = '2025-11-25';
const INVALID_PARAMS = -32602;
// The acceptance bound: an answered call is in the audit this soon.
const AUDIT_WITHIN_MS = 1000;
// The generator is seeded, so this is the same on every machine.
const SAMPLE_ORDERS = 32000;

const [url, key, command, ...args] = process.argv.slice(2);
if (!url || !key) {
    console.error('usage: node client.mjs URL KEY [COMMAND ARG...]');
    process.exit(2);
}
const base = new URL('/', url);
const endpoint = new URL(url).pathname === '/' ? new URL('/mcp', base) : new URL(url);
const run = randomUUID();
const startedAt = new Date().toISOString();

function connect(apiKey) {
    const transport = command
        ? new StdioClientTransport({ command, args, env: { ANNALS_API_KEY: apiKey }, stderr: 'pipe' })
        : new StreamableHTTPClientTransport(endpoint, {
              requestInit: { headers: { Authorization: `Bearer ${apiKey}` } }
          });
    // Over HTTP the transport has one, over stdio it is told to none.
    if (command) transport.setProtocolVersion = version => (transport.protocolVersion = version);
    const client = new Client({ name: 'annals-test-client-js', version: '1.0.0' });
    const errors = [];
    client.onerror = error => errors.push(error);
    return { client, transport, errors };
}

async function audit(path, query) {
    const address = new URL(`/api/v1/admin/audit/${path}`, base);
    for (const [name, value] of Object.entries(query)) address.searchParams.set(name, value);
    const response = await fetch(address, { headers: { Authorization: `Bearer ${key}` } });
    const text = await response.text();
    assert.equal(response.status, 200, `GET ${address.pathname}: ${response.status} ${text}`);
    return JSON.parse(text);
}

// Polls the audit until a row passes `wanted`, from the moment its answer arrived; returns it and how long it took.
async function auditRow(query, wanted, answeredAt) {
    for (;;) {
        const { data, next_cursor } = await audit('events', { limit: '1000', ...query });
        assert.ok(Array.isArray(data), 'data is an array');
        assert.ok(next_cursor === null || typeof next_cursor === 'string', 'next_cursor is null or a string');
        const tookMs = Math.round(performance.now() - answeredAt);
        const rows = data.filter(wanted);
        assert.ok(rows.length <= 1, `one row, not ${rows.length}: ${JSON.stringify(rows)}`);
        if (rows.length === 1) {
            assert.ok(tookMs <= AUDIT_WITHIN_MS, `the row came after ${tookMs} ms`);
            return { row: rows[0], tookMs };
        }
        assert.ok(tookMs <= AUDIT_WITHIN_MS, `no row ${tookMs} ms after the answer; got ${JSON.stringify(data)}`);
        await sleep(15);
    }
}

const latencies = {};

// The id under which an answer says that its call is recorded.
const callId = answer => (answer instanceof Error ? answer.data?.call_id : answer._meta?.['io.annals/call_id']);

// Makes one call through `act`, then requires its one audit row with the `expected` columns.
async function recorded(name, sessionId, tool, expected, act) {
    const purpose = `${run} ${name}`;
    const answer = await act(purpose);
    const answeredAt = performance.now();
    const { row, tookMs } = await auditRow({ session_id: sessionId }, row => row.purpose === purpose, answeredAt);
    latencies[name] = tookMs;
    const carrier = command ? 'stdio' : 'http';
    const common = { tool_name: tool, session_id: sessionId, transport: carrier, source: 'mcp', persona: 'admin' };
    for (const [column, value] of Object.entries({ ...common, ...expected })) {
        assert.deepEqual(row[column], value, `${name}: column ${column} of ${JSON.stringify(row)}`);
    }
    assert.equal(row.id, callId(answer), `${name}: the answer names its record`);
    assert.ok(row.user_id, `${name}: user_id is set`);
    assert.ok(Number.isInteger(row.duration_ms) && row.duration_ms >= 0, `${name}: duration_ms ${row.duration_ms}`);
    return { answer, row };
}

// A tool's structured result, which its text must repeat.
function structured(result) {
    assert.notEqual(result.isError, true, `the tool answers: ${JSON.stringify(result)}`);
    assert.equal(result.content.length, 1);
    assert.equal(result.content[0].type, 'text');
    assert.deepEqual(JSON.parse(result.content[0].text), result.structuredContent);
    return result.structuredContent;
}

async function refusesAnUnknownKey() {
    const { client, transport } = connect(`annals_${'0'.repeat(43)}`);
    const asked = new Date().toISOString();
    let said = '';
    if (command) transport.stderr.on('data', text => (said += text));
    await assert.rejects(client.connect(transport), error => {
        if (!command) assert.equal(error.code, 401, `HTTP 401, not ${error}`);
        return true;
    });
    if (command) assert.match(said, /not known.*annals key create/);
    const query = { event_kind: 'auth.failed', start_time: asked };
    const { tookMs } = await auditRow(query, () => true, performance.now());
    latencies.auth_failed = tookMs;
}

// What the columns that were found and described lead to.
const STORY = "SELECT reason, count(*) AS returns FROM returns WHERE returned_on >= '2025-11-01' AND returned_on < '2025-12-01' "
    + "AND reason = 'leaks' GROUP BY reason";
const STORY_ROWS = [['leaks', 50]];

async function main() {
    await refusesAnUnknownKey();

    const { client, transport, errors } = connect(key);
    await client.connect(transport);
    assert.equal(transport.protocolVersion, PROTOCOL_VERSION);
    assert.equal(client.getServerVersion().name, 'annals');
    assert.ok(client.getInstructions()?.length > 0, 'the server gives instructions');
    const { row: started } = await auditRow(
        { event_kind: 'session.started', start_time: startedAt }, row => row.persona === 'admin', performance.now()
    );
    const sessionId = command ? started.session_id : transport.sessionId;
    assert.equal(started.session_id, sessionId, 'the session is in the audit');
    assert.match(sessionId, /^[\x21-\x7e]{16,}$/);
    assert.deepEqual(await client.ping(), {});

    const { tools: listed } = await client.listTools();
    for (const name of ['platform_info', 'list_connections', 'search', 'fetch', 'sql_tables', 'sql_describe', 'sql_query']) {
        assert.ok(listed.some(tool => tool.name === name), `${name} is listed`);
    }
    const sqlQuery = listed.find(tool => tool.name === 'sql_query');
    assert.equal(sqlQuery.annotations?.readOnlyHint, true);
    assert.ok(sqlQuery.inputSchema.properties.purpose, 'sql_query advertises purpose');

    const call = (name, args) => purpose => client.callTool({ name, arguments: { ...args, purpose } });
    const completed = { event_kind: 'tool_call.completed', success: true, authorized: true, error_message: null };

    const info = await recorded(
        'platform_info', sessionId, 'platform_info', { ...completed, toolkit_kind: 'platform' },
        call('platform_info', {})
    );
    assert.equal(typeof structured(info.answer).version, 'string');

    const connections = await recorded(
        'list_connections', sessionId, 'list_connections', completed, call('list_connections', {})
    );
    const sample = structured(connections.answer).connections.find(connection => connection.name === 'sample');
    assert.equal(sample?.kind, 'postgres', 'the sample connection is listed');

    const found = await recorded(
        'search', sessionId, 'search', { ...completed, toolkit_kind: 'platform', connection: null },
        call('search', { intent: "reasons of a product's returns", sources: ['tables'] })
    );
    const table = structured(found.answer).results[0];
    assert.equal(table.id, 'table:sample/public.returns', JSON.stringify(structured(found.answer)));
    assert.deepEqual(structured(found.answer).unavailable, []);

    const described = await recorded(
        'sql_describe', sessionId, 'sql_describe', { ...completed, toolkit_kind: 'sql', connection: 'sample' },
        call('sql_describe', { table: table.title, connection: table.connection })
    );
    const columns = structured(described.answer).columns.map(column => column.name);
    assert.ok(columns.includes('reason') && columns.includes('returned_on'), JSON.stringify(columns));

    const story = await recorded(
        'sql_query_story', sessionId, 'sql_query', { ...completed, connection: 'sample' },
        call('sql_query', { connection: table.connection, sql: STORY })
    );
    assert.deepEqual(structured(story.answer).rows, STORY_ROWS);

    const fetched = await recorded(
        'fetch', sessionId, 'fetch', { ...completed, toolkit_kind: 'platform', connection: 'sample' },
        call('fetch', { id: table.id })
    );
    const { connection, columns: known } = structured(fetched.answer).metadata;
    assert.deepEqual({ connection, columns: known.map(column => column.name) }, { connection: 'sample', columns });

    const sql = 'SELECT count(*) AS orders FROM orders';
    const counted = await recorded(
        'sql_query', sessionId, 'sql_query',
        {
            ...completed, toolkit_kind: 'sql', connection: 'sample', parameters: { connection: 'sample', sql },
            content_blocks: 1
        },
        call('sql_query', { connection: 'sample', sql })
    );
    const answer = structured(counted.answer);
    assert.deepEqual(answer.columns, [{ name: 'orders', type: 'bigint' }]);
    assert.deepEqual(answer.rows, [[SAMPLE_ORDERS]]);
    assert.equal(counted.row.response_chars, counted.answer.content[0].text.length);

    const unknown = await recorded(
        'unknown_tool', sessionId, 'no_such_tool',
        { event_kind: 'tool_call.denied', success: false, authorized: false, toolkit_kind: null },
        async purpose => {
            const error = await call('no_such_tool', {})(purpose).then(() => null, error => error);
            assert.equal(error?.code, INVALID_PARAMS, `JSON-RPC ${INVALID_PARAMS}, not ${error}`);
            assert.equal(error.data?.code, 'unknown_tool', JSON.stringify(error.data));
            return error;
        }
    );
    assert.ok(unknown.row.error_message, 'the refusal has its reason');

    const forbidden = await recorded(
        'forbidden_sql', sessionId, 'sql_query',
        { event_kind: 'tool_call.failed', success: false, connection: 'sample' },
        call('sql_query', { connection: 'sample', sql: 'DELETE FROM orders' })
    );
    assert.equal(forbidden.answer.isError, true);
    const refusal = JSON.parse(forbidden.answer.content[0].text);
    assert.ok(['authz', 'validation'].includes(refusal.category), JSON.stringify(refusal));
    assert.ok(refusal.code && refusal.message && refusal.hint, JSON.stringify(refusal));

    const whole = await audit(`events/${counted.row.id}`, {});
    assert.ok(JSON.stringify(whole).includes(sql), 'the event holds the statement as it was sent');

    const listing = await audit('events', { session_id: sessionId, limit: '1000' });
    assert.deepEqual(
        listing.data.map(row => row.event_kind),
        ['tool_call.failed', 'tool_call.denied', ...Array(7).fill('tool_call.completed'), 'session.started'],
        'one row per call, newest first'
    );

    if (command) await client.close();
    else await terminated(transport, sessionId);
    const { row: ended } = await auditRow(
        { event_kind: 'session.ended', session_id: sessionId }, () => true, performance.now()
    );
    const end = await audit(`events/${ended.event_id}`, {});
    assert.ok(JSON.stringify(end).includes('client_delete'), JSON.stringify(end));
    await client.close();
    assert.deepEqual(errors, [], 'the SDK reported no error on the side');
    return {
        client: 'typescript', protocol_version: transport.protocolVersion, orders: SAMPLE_ORDERS, audit_ms: latencies
    };
}

async function terminated(transport, sessionId) {
    await transport.terminateSession();
    const gone = await fetch(endpoint, {
        method: 'POST',
        headers: {
            authorization: `Bearer ${key}`, 'content-type': 'application/json',
            accept: 'application/json, text/event-stream', 'mcp-session-id': sessionId,
            'mcp-protocol-version': PROTOCOL_VERSION
        },
        body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'ping' })
    });
    await gone.arrayBuffer();
    assert.equal(gone.status, 404, 'an ended session is unknown');
}

try {
    const summary = await main();
    console.log(JSON.stringify({ ok: true, started_at: startedAt, ...summary }));
} catch (error) {
    console.log(JSON.stringify({ ok: false, client: 'typescript', error: String(error?.message ?? error) }));
    console.error(error);
    // A process that was started would keep this one.
    process.exit(1);
}
