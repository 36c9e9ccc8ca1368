// A worker that speaks the contract by itself, over Postgres, in the fewest lines: node worker.mjs URL GROUP [PREFIX]
// It needs the package pg (npm install pg). Put your own handlers in; a handler may be called twice for one step_id.
import { randomUUID } from 'node:crypto';
import pg from 'pg';

const handlers = {
  upper: async (input) => input.toUpperCase(),
};

const [url, group, prefix = 'durable'] = process.argv.slice(2);
if (!/^[A-Za-z0-9_][A-Za-z0-9_-]{0,34}$/.test(prefix)) throw new Error('that is no prefix');
const [tasks, results] = [`"${prefix}_transport_tasks"`, `"${prefix}_transport_results"`];
const me = `node-${randomUUID()}`;
const lease = 30000;
const now = '(extract(epoch FROM statement_timestamp()) * 1000)::bigint'; // the database's clock, not ours
const pool = new pg.Pool({ connectionString: url });

async function inTransaction(work) {
  const client = await pool.connect();
  try {
    await client.query('BEGIN');
    const done = await work(client);
    await client.query('COMMIT');
    return done;
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {});
    throw error;
  } finally {
    client.release();
  }
}

const claim = () =>
  inTransaction(async (client) => {
    const { rows } = await client.query(
      `SELECT step_id, name, input, attempt, ${now} AS now FROM ${tasks}
       WHERE grp = $1 AND (claimed_at IS NULL OR claimed_at < ${now} - $2)
       ORDER BY created_at LIMIT 1 FOR UPDATE SKIP LOCKED`,
      [group, lease],
    );
    const ids = rows.map((row) => row.step_id);
    await client.query(`UPDATE ${tasks} SET claimed_by = $1, claimed_at = ${now} WHERE step_id = ANY($2)`, [me, ids]);
    return rows[0];
  });

async function run(task) {
  const handler = handlers[task.name];
  if (!handler) return { error: { message: `no handler for ${task.name}`, retryable: false } };
  try {
    return { output: await handler(JSON.parse(task.input ?? 'null')) };
  } catch (error) {
    return { error: { message: String(error.message), stack: error.stack } };
  }
}

// The result and the end of the task are one transaction, and only for a task that is still ours.
const record = (task, { output, error }) =>
  inTransaction((client) =>
    client.query(
      `WITH done AS (DELETE FROM ${tasks} WHERE step_id = $1 AND attempt = $2 AND claimed_by = $3 RETURNING *)
       INSERT INTO ${results} (step_id, run_id, seq, status, output, error, started_at, created_at)
       SELECT step_id, run_id, seq, $4, $5, $6, $7, ${now} FROM done ON CONFLICT (step_id) DO NOTHING`,
      [task.step_id, task.attempt, me, error ? 'failed' : 'completed',
        error ? null : JSON.stringify(output ?? null), error ? JSON.stringify(error) : null, task.now],
    ),
  );

const renew = (task) =>
  pool.query(`UPDATE ${tasks} SET claimed_at = ${now} WHERE step_id = $1 AND claimed_by = $2`, [task.step_id, me]);

process.stdout.write('ready\n');
for (;;) {
  try {
    const task = await claim();
    if (task) {
      const timer = setInterval(() => renew(task).catch(console.error), lease / 3);
      await record(task, await run(task)).finally(() => clearInterval(timer));
      continue;
    }
  } catch (error) {
    console.error(error.message); // the database is away: try again
  }
  await new Promise((resolve) => setTimeout(resolve, 500));
}
