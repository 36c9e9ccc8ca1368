-- compatible from: 1
--
-- What observers send along with a start, a signal or a remote step, so that a trace goes on where it is taken up: JSON, an
-- object of short texts, as HTTP headers would have them. Null wherever nobody observes.
--
--   runs.trace          of whoever started the run; when a worker lets go of it, also of what the worker saw of it.
--   mailbox.trace       of whoever sent a signal.
--   remote_steps.trace  of the run that sends the step, for transports that have room for it.

ALTER TABLE {schema}.runs ADD COLUMN trace text;
ALTER TABLE {schema}.mailbox ADD COLUMN trace text;
ALTER TABLE {schema}.remote_steps ADD COLUMN trace text;
