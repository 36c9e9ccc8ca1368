-- at the end

-- What no row may hold, whichever hand writes it: times that no calendar has, spans beyond three thousand years, counts
-- below zero where none can be, or near the end of their type. One such number would make a sum overflow, and with it the
-- statement that reads it along with others. Code never comes near these bounds: a span is at most a hundred years, a time
-- before the year 9000, and a counter stops at half of what is allowed here.
ALTER TABLE {schema}.definitions ADD CONSTRAINT definitions_in_range CHECK (
    LEAST(registered_at, seen_at) >= -62135596800000 AND GREATEST(registered_at, seen_at) <= 253402300799999);
ALTER TABLE {schema}.workers ADD CONSTRAINT workers_in_range CHECK (
    LEAST(started_at, beat_at, expires_at) >= -62135596800000 AND GREATEST(started_at, beat_at, expires_at) <=
        253402300799999
    AND lease_ms BETWEEN 0 AND 100000000000000
    AND LEAST(concurrency, running) >= 0 AND GREATEST(concurrency, running) <= 2000000000);
ALTER TABLE {schema}.runs ADD CONSTRAINT runs_in_range CHECK (
    LEAST(created_at, started_at, completed_at, paused_at, visible_at, deadline_at, expires_at, held_due, ready_at)
        >= -62135596800000 AND GREATEST(created_at, started_at, completed_at, paused_at, visible_at, deadline_at,
        expires_at, held_due, ready_at) <= 253402300799999
    AND LEAST(timeout_ms, deadline_ms, linger_ms) >= 0 AND GREATEST(timeout_ms, deadline_ms, linger_ms) <=
        100000000000000
    AND LEAST(claim, wakes, ends, awaits, attempt, first_attempt, max_attempts, losses, unrecorded_losses,
        counted_attempt, pending, met, ordinal, links_gone) >= 0 AND GREATEST(claim, wakes, ends, awaits, attempt,
        first_attempt, max_attempts, losses, unrecorded_losses, counted_attempt, pending, met, ordinal, links_gone) <= 2000000000
    AND place BETWEEN -62135596800000000 AND 253402300799999000);
ALTER TABLE {schema}.claims ADD CONSTRAINT claims_in_range CHECK (claim BETWEEN 0 AND 2000000000);
ALTER TABLE {schema}.past_workers ADD CONSTRAINT past_workers_in_range CHECK (
    left_at BETWEEN -62135596800000 AND 253402300799999);
ALTER TABLE {schema}.steps ADD CONSTRAINT steps_in_range CHECK (
    LEAST(started_at, completed_at) >= -62135596800000 AND GREATEST(started_at, completed_at) <= 253402300799999
    AND LEAST(position, seq, claim, attempts, losses) >= -2000000000 AND GREATEST(position, seq, claim, attempts, losses)
        <= 2000000000);
ALTER TABLE {schema}.tries ADD CONSTRAINT tries_in_range CHECK (
    LEAST(started_at, completed_at, due_at) >= -62135596800000 AND GREATEST(started_at, completed_at, due_at) <=
        253402300799999
    AND LEAST(position, attempt, number, claim) >= -2000000000 AND GREATEST(position, attempt, number, claim) <= 2000000000);
ALTER TABLE {schema}.progress ADD CONSTRAINT progress_in_range CHECK (
    LEAST(started_at, updated_at) >= -62135596800000 AND GREATEST(started_at, updated_at) <= 253402300799999
    AND position BETWEEN -2000000000 AND 2000000000);
ALTER TABLE {schema}.mailbox ADD CONSTRAINT mailbox_in_range CHECK (
    sent_at BETWEEN -62135596800000 AND 253402300799999);
ALTER TABLE {schema}.streams ADD CONSTRAINT streams_in_range CHECK (
    items BETWEEN 0 AND 2000000000 AND size BETWEEN 0 AND 100000000000000);
ALTER TABLE {schema}.stream_sources ADD CONSTRAINT stream_sources_in_range CHECK (
    LEAST(claim, attempt, items) >= 0 AND GREATEST(claim, attempt, items) <= 2000000000);
ALTER TABLE {schema}.stream_items ADD CONSTRAINT stream_items_in_range CHECK (
    LEAST(number, attempt) >= 0 AND GREATEST(number, attempt) <= 2000000000
    AND sent_at BETWEEN -62135596800000 AND 253402300799999);
ALTER TABLE {schema}.questions ADD CONSTRAINT questions_in_range CHECK (
    LEAST(asked_at, ended_at) >= -62135596800000 AND GREATEST(asked_at, ended_at) <= 253402300799999);
ALTER TABLE {schema}.callbacks ADD CONSTRAINT callbacks_in_range CHECK (
    LEAST(opened_at, beat_at, ended_at) >= -62135596800000 AND GREATEST(opened_at, beat_at, ended_at) <= 253402300799999
    AND LEAST(timeout_ms, heartbeat_ms, 0) >= 0 AND GREATEST(timeout_ms, heartbeat_ms, 0) <= 253402300799999
    AND attempt BETWEEN 0 AND 2000000000);

ALTER TABLE {schema}.events ADD CONSTRAINT events_in_range CHECK (
    published_at BETWEEN -62135596800000 AND 253402300799999
    AND number BETWEEN -62135596800000000 AND 253402300799999000);
ALTER TABLE {schema}.event_order ADD CONSTRAINT event_order_in_range CHECK (
    LEAST(given, matched) >= 0 AND GREATEST(given, matched) <= 253402300799999000);
ALTER TABLE {schema}.event_waits ADD CONSTRAINT event_waits_in_range CHECK (
    since BETWEEN -62135596800000 AND 253402300799999
    AND passed BETWEEN 0 AND 253402300799999000);
ALTER TABLE {schema}.event_subscriptions ADD CONSTRAINT event_subscriptions_in_range CHECK (
    LEAST(created_at, seen_at) >= -62135596800000 AND GREATEST(created_at, seen_at) <= 253402300799999);
ALTER TABLE {schema}.event_starts ADD CONSTRAINT event_starts_in_range CHECK (
    due_at BETWEEN -62135596800000 AND 253402300799999
    AND tries BETWEEN 0 AND 2000000000);
ALTER TABLE {schema}.run_values ADD CONSTRAINT run_values_in_range CHECK (
    updated_at BETWEEN -62135596800000 AND 253402300799999);
ALTER TABLE {schema}.remote_steps ADD CONSTRAINT remote_steps_in_range CHECK (
    LEAST(dispatched_at, due_at, settled_at) >= -62135596800000 AND GREATEST(dispatched_at, due_at, settled_at) <=
        253402300799999
    AND queue_ms >= 0
    AND LEAST(seq, position, claim, run_attempt, attempt, retries, resent) >= -2000000000 AND GREATEST(seq, position,
        claim, run_attempt, attempt, retries, resent) <= 2000000000);
ALTER TABLE {schema}.queues ADD CONSTRAINT queues_in_range CHECK (
    LEAST(paused_at, declared_at, limited_since, counted_at, pruned_at) >= -62135596800000 AND GREATEST(paused_at,
        declared_at, limited_since, counted_at, pruned_at) <= 253402300799999
    AND max_ready BETWEEN 0 AND 2000000000);
ALTER TABLE {schema}.queue_starts ADD CONSTRAINT queue_starts_in_range CHECK (
    at BETWEEN -62135596800000 AND 253402300799999
    AND number BETWEEN 0 AND 2000000000);
ALTER TABLE {schema}.schedules ADD CONSTRAINT schedules_in_range CHECK (
    LEAST(next_at, due_at, woken_at, last_at, created_at) >= -62135596800000 AND GREATEST(next_at, due_at, woken_at,
        last_at, created_at) <= 253402300799999
    AND LEAST(every_ms, jitter_ms) >= 0 AND GREATEST(every_ms, jitter_ms) <= 100000000000000);
ALTER TABLE {schema}.audit ADD CONSTRAINT audit_in_range CHECK (
    at BETWEEN -62135596800000 AND 253402300799999);
ALTER TABLE {schema}.checkpoints ADD CONSTRAINT checkpoints_in_range CHECK (
    created_at BETWEEN -62135596800000 AND 253402300799999);
ALTER TABLE {schema}.checkpoint_writes ADD CONSTRAINT checkpoint_writes_in_range CHECK (
    number BETWEEN -2000000000 AND 2000000000);
ALTER TABLE {schema}.session_items ADD CONSTRAINT session_items_in_range CHECK (
    added_at BETWEEN -62135596800000 AND 253402300799999
    AND number BETWEEN 0 AND 253402300799999000);
