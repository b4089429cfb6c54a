-- publish :group :delay :priority :payload
INSERT INTO "own ""jobs""" ("kind", "try", "due", "level", "body") VALUES (CAST($1 AS text), 1, (statement_timestamp() AT TIME ZONE 'UTC') + (CAST($2 AS bigint) + 500) * interval '1 microsecond', CAST($3 AS bigint), CAST(CAST($4 AS text) AS jsonb));

-- publish with an id :id :group :delay :priority :payload
INSERT INTO "own ""jobs""" ("uuid", "kind", "try", "due", "level", "body") VALUES (CAST(CAST($1 AS text) AS uuid), CAST($2 AS text), 1, (statement_timestamp() AT TIME ZONE 'UTC') + (CAST($3 AS bigint) + 500) * interval '1 microsecond', CAST($4 AS bigint), CAST(CAST($5 AS text) AS jsonb));

-- due :floors :group
SELECT CAST(extract(epoch FROM min(greatest(least(settle_a, statement_timestamp() + interval '1 hour'), statement_timestamp())) - statement_timestamp()) * 1000000 AS bigint), CAST(extract(epoch FROM min(greatest(least(settle_a, statement_timestamp() + interval '1 hour'), statement_timestamp())) FILTER (WHERE settle_a > statement_timestamp()) - statement_timestamp()) * 1000000 AS bigint) FROM (SELECT settle_a FROM (WITH settle_1 AS MATERIALIZED (SELECT r.settle_a FROM (WITH RECURSIVE settle_levels(p) AS ((SELECT CASE WHEN CAST(CAST($1 AS text) AS jsonb) IS NULL THEN (SELECT t."level" AS p FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" IS NOT NULL ORDER BY t."level" DESC LIMIT 1) END) UNION ALL SELECT (SELECT t."level" AS p FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" < o.p ORDER BY t."level" DESC LIMIT 1) FROM settle_levels AS o WHERE o.p IS NOT NULL) SELECT p, CAST(NULL AS bigint) AS settle_floor, CAST(NULL AS text) AS settle_id FROM settle_levels WHERE p IS NOT NULL UNION ALL SELECT n.p, NULL, NULL FROM (SELECT t."level" AS p FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" > CAST(CAST(CAST($1 AS text) AS jsonb) -> 0 ->> 0 AS bigint) ORDER BY t."level" DESC LIMIT 1) AS n UNION ALL SELECT CAST(e ->> 0 AS bigint), CAST(e ->> 1 AS bigint), CAST(e ->> 2 AS text) FROM jsonb_array_elements(CAST(CAST($1 AS text) AS jsonb)) AS e) AS v CROSS JOIN LATERAL (SELECT CAST('-infinity' AS timestamptz) AS settle_a FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" = v.p AND (t."due" IS NULL OR t."due" <= (statement_timestamp() AT TIME ZONE 'UTC')) ORDER BY t."due" NULLS FIRST, t."uuid" LIMIT CAST(1000 AS bigint)) AS r LIMIT CAST(1000 AS bigint)), settle_2 AS MATERIALIZED (SELECT CAST('-infinity' AS timestamptz) AS settle_a FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" IS NULL AND (t."due" IS NULL OR t."due" <= (statement_timestamp() AT TIME ZONE 'UTC')) ORDER BY t."level" DESC, t."due" NULLS FIRST, t."uuid" LIMIT greatest(CAST(1000 AS bigint) - (SELECT count(*) FROM settle_1), 0)) SELECT * FROM settle_1 UNION ALL SELECT * FROM settle_2) AS l0 UNION ALL SELECT settle_a FROM (SELECT r.settle_a FROM (WITH RECURSIVE settle_levels(p) AS ((SELECT CASE WHEN CAST(CAST($1 AS text) AS jsonb) IS NULL THEN (SELECT t."level" AS p FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" IS NOT NULL ORDER BY t."level" DESC LIMIT 1) END) UNION ALL SELECT (SELECT t."level" AS p FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" < o.p ORDER BY t."level" DESC LIMIT 1) FROM settle_levels AS o WHERE o.p IS NOT NULL) SELECT p, CAST(NULL AS bigint) AS settle_floor, CAST(NULL AS text) AS settle_id FROM settle_levels WHERE p IS NOT NULL UNION ALL SELECT n.p, NULL, NULL FROM (SELECT t."level" AS p FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" > CAST(CAST(CAST($1 AS text) AS jsonb) -> 0 ->> 0 AS bigint) ORDER BY t."level" DESC LIMIT 1) AS n UNION ALL SELECT CAST(e ->> 0 AS bigint), CAST(e ->> 1 AS bigint), CAST(e ->> 2 AS text) FROM jsonb_array_elements(CAST(CAST($1 AS text) AS jsonb)) AS e) AS v CROSS JOIN LATERAL (SELECT (t."due" AT TIME ZONE 'UTC') AS settle_a FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" = v.p AND t."due" > (statement_timestamp() AT TIME ZONE 'UTC') ORDER BY t."due" NULLS FIRST, t."uuid" LIMIT 1) AS r) AS l1 UNION ALL SELECT settle_a FROM (SELECT (t."due" AT TIME ZONE 'UTC') AS settle_a FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" IS NULL AND t."due" > (statement_timestamp() AT TIME ZONE 'UTC') ORDER BY t."level" DESC, t."due" NULLS FIRST, t."uuid" LIMIT 1) AS l2) AS a;

-- candidates :floors :group :held :scan :limit
SELECT r.settle_a, r.settle_b FROM (SELECT q.settle_a, q.settle_b, q.settle_n FROM (SELECT p.*, row_number() OVER (PARTITION BY p.settle_b ORDER BY p.settle_n) AS settle_first FROM (SELECT c.*, row_number() OVER () AS settle_n FROM (WITH settle_1 AS MATERIALIZED (SELECT r.settle_a, r.settle_b FROM (WITH RECURSIVE settle_levels(p) AS ((SELECT CASE WHEN CAST(CAST($1 AS text) AS jsonb) IS NULL THEN (SELECT t."level" AS p FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" IS NOT NULL ORDER BY t."level" DESC LIMIT 1) END) UNION ALL SELECT (SELECT t."level" AS p FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" < o.p ORDER BY t."level" DESC LIMIT 1) FROM settle_levels AS o WHERE o.p IS NOT NULL) SELECT p, CAST(NULL AS bigint) AS settle_floor, CAST(NULL AS text) AS settle_id FROM settle_levels WHERE p IS NOT NULL UNION ALL SELECT n.p, NULL, NULL FROM (SELECT t."level" AS p FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" > CAST(CAST(CAST($1 AS text) AS jsonb) -> 0 ->> 0 AS bigint) ORDER BY t."level" DESC LIMIT 1) AS n UNION ALL SELECT CAST(e ->> 0 AS bigint), CAST(e ->> 1 AS bigint), CAST(e ->> 2 AS text) FROM jsonb_array_elements(CAST(CAST($1 AS text) AS jsonb)) AS e) AS v CROSS JOIN LATERAL (SELECT CAST(t."uuid" AS text) AS settle_a, hashtextextended(concat('jobs-', t."uuid") COLLATE "C", 0) AS settle_b FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" = v.p AND (t."due" IS NULL OR t."due" <= (statement_timestamp() AT TIME ZONE 'UTC')) AND hashtextextended(concat('jobs-', t."uuid") COLLATE "C", 0) <> ALL(CAST($3 AS bigint[])) ORDER BY t."due" NULLS FIRST, t."uuid" LIMIT CAST($4 AS bigint)) AS r LIMIT CAST($4 AS bigint)), settle_2 AS MATERIALIZED (SELECT CAST(t."uuid" AS text) AS settle_a, hashtextextended(concat('jobs-', t."uuid") COLLATE "C", 0) AS settle_b FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" IS NULL AND (t."due" IS NULL OR t."due" <= (statement_timestamp() AT TIME ZONE 'UTC')) AND hashtextextended(concat('jobs-', t."uuid") COLLATE "C", 0) <> ALL(CAST($3 AS bigint[])) ORDER BY t."level" DESC, t."due" NULLS FIRST, t."uuid" LIMIT greatest(CAST($4 AS bigint) - (SELECT count(*) FROM settle_1), 0)) SELECT * FROM settle_1 UNION ALL SELECT * FROM settle_2) AS c) AS p) AS q WHERE q.settle_first = 1 ORDER BY q.settle_n OFFSET 0) AS r WHERE pg_try_advisory_lock(r.settle_b) LIMIT CAST($5 AS bigint);

-- locks
SELECT (CAST(classid AS bigint) << 32) | CAST(objid AS bigint) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- take :ids :group
UPDATE "own ""jobs""" AS t SET "try" = least(greatest(coalesce(t."try", 1), 1), 32766) + 1 WHERE t."uuid" = ANY(ARRAY(SELECT t."uuid" FROM "own ""jobs""" AS t WHERE t."uuid" = ANY(CAST(CAST($1 AS text[]) AS uuid[])) AND (t."kind" = CAST($2 AS text) AND (t."due" IS NULL OR t."due" <= (statement_timestamp() AT TIME ZONE 'UTC'))) IS TRUE FOR NO KEY UPDATE OF t SKIP LOCKED)) RETURNING CAST(t."uuid" AS text), CAST(t."body" AS text), CAST(least(greatest(coalesce(t."try", 1), 1), 2147483647) AS bigint), CASE WHEN isfinite(t."due") THEN CAST(extract(epoch FROM t."due") * 1000000 AS bigint) WHEN t."due" = 'infinity' THEN 9223372036854775807 ELSE -9223372036854775808 END, CAST(t."level" AS bigint);

-- unlock :lock
SELECT pg_advisory_unlock(CAST($1 AS bigint));

-- ack :id :attempt
DELETE FROM "own ""jobs""" WHERE "uuid" = CAST(CAST($1 AS text) AS uuid) AND "try" = CAST($2 AS bigint);

-- ack many :ids :attempts
DELETE FROM "own ""jobs""" AS t USING unnest(CAST($1 AS text[]), CAST($2 AS bigint[])) WITH ORDINALITY AS s(settle_id, settle_attempt, settle_n) WHERE t."uuid" = CAST(CAST(s.settle_id AS text) AS uuid) AND t."try" = s.settle_attempt RETURNING s.settle_n - 1;

-- drop :id :attempt
DELETE FROM "own ""jobs""" WHERE "uuid" = CAST(CAST($1 AS text) AS uuid) AND "try" = CAST($2 AS bigint);

-- drop many :ids :attempts
DELETE FROM "own ""jobs""" AS t USING unnest(CAST($1 AS text[]), CAST($2 AS bigint[])) WITH ORDINALITY AS s(settle_id, settle_attempt, settle_n) WHERE t."uuid" = CAST(CAST(s.settle_id AS text) AS uuid) AND t."try" = s.settle_attempt RETURNING s.settle_n - 1;

-- retryafter :delay :id :attempt
UPDATE "own ""jobs""" SET "due" = (statement_timestamp() AT TIME ZONE 'UTC') + (CAST($1 AS bigint) + 500) * interval '1 microsecond' WHERE "uuid" = CAST(CAST($2 AS text) AS uuid) AND "try" = CAST($3 AS bigint);

-- retryafter many :ids :attempts :delays
UPDATE "own ""jobs""" AS t SET "due" = (statement_timestamp() AT TIME ZONE 'UTC') + (CAST(s.settle_delay AS bigint) + 500) * interval '1 microsecond' FROM unnest(CAST($1 AS text[]), CAST($2 AS bigint[]), CAST($3 AS bigint[])) WITH ORDINALITY AS s(settle_id, settle_attempt, settle_delay, settle_n) WHERE t."uuid" = CAST(CAST(s.settle_id AS text) AS uuid) AND t."try" = s.settle_attempt RETURNING s.settle_n - 1;

-- deadletter :dead :id :attempt
UPDATE "own ""jobs""" SET "kind" = CAST($1 AS text) WHERE "uuid" = CAST(CAST($2 AS text) AS uuid) AND "try" = CAST($3 AS bigint);

-- deadletter many :dead :ids :attempts
UPDATE "own ""jobs""" AS t SET "kind" = CAST($1 AS text) FROM unnest(CAST($2 AS text[]), CAST($3 AS bigint[])) WITH ORDINALITY AS s(settle_id, settle_attempt, settle_n) WHERE t."uuid" = CAST(CAST(s.settle_id AS text) AS uuid) AND t."try" = s.settle_attempt RETURNING s.settle_n - 1;

-- release :attempt :id
UPDATE "own ""jobs""" SET "try" = $1 - 1 WHERE "uuid" = CAST(CAST($2 AS text) AS uuid) AND "try" = CAST($1 AS bigint);

-- release many :ids :attempts
UPDATE "own ""jobs""" AS t SET "try" = s.settle_attempt - 1 FROM unnest(CAST($1 AS text[]), CAST($2 AS bigint[])) WITH ORDINALITY AS s(settle_id, settle_attempt, settle_n) WHERE t."uuid" = CAST(CAST(s.settle_id AS text) AS uuid) AND t."try" = s.settle_attempt RETURNING s.settle_n - 1;

-- committed :transaction
SELECT CASE pg_xact_status(CAST(CAST($1 AS text) AS xid8)) WHEN 'committed' THEN 1 WHEN 'aborted' THEN 0 END;

