-- publish :group :delay :priority :payload
INSERT INTO "own ""jobs""" ("kind", "try", "due", "level", "body") VALUES (CAST($1 AS text), 1, (statement_timestamp() AT TIME ZONE 'UTC') + (CAST($2 AS bigint) + 500) * interval '1 microsecond', CAST($3 AS bigint), CAST(CAST($4 AS text) AS jsonb));

-- publish with an id :id :group :delay :priority :payload
INSERT INTO "own ""jobs""" ("uuid", "kind", "try", "due", "level", "body") VALUES (CAST(CAST($1 AS text) AS uuid), CAST($2 AS text), 1, (statement_timestamp() AT TIME ZONE 'UTC') + (CAST($3 AS bigint) + 500) * interval '1 microsecond', CAST($4 AS bigint), CAST(CAST($5 AS text) AS jsonb));

-- due :floors :group
SELECT CAST(extract(epoch FROM min(greatest(least(settle_a, statement_timestamp() + interval '1 hour'), statement_timestamp())) - statement_timestamp()) * 1000000 AS bigint), CAST(extract(epoch FROM min(greatest(least(settle_a, statement_timestamp() + interval '1 hour'), statement_timestamp())) FILTER (WHERE settle_a > statement_timestamp()) - statement_timestamp()) * 1000000 AS bigint) FROM (SELECT settle_a FROM (WITH settle_1 AS MATERIALIZED (SELECT r.settle_a FROM (WITH RECURSIVE settle_levels(p) AS ((SELECT CASE WHEN CAST(CAST($1 AS text) AS jsonb) IS NULL THEN (SELECT t."level" AS p FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" IS NOT NULL ORDER BY t."level" DESC LIMIT 1) END) UNION ALL SELECT (SELECT t."level" AS p FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" < o.p ORDER BY t."level" DESC LIMIT 1) FROM settle_levels AS o WHERE o.p IS NOT NULL) SELECT p, CAST(NULL AS bigint) AS settle_floor, CAST(NULL AS text) AS settle_id FROM settle_levels WHERE p IS NOT NULL UNION ALL SELECT n.p, NULL, NULL FROM (SELECT t."level" AS p FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" > CAST(CAST(CAST($1 AS text) AS jsonb) -> 0 ->> 0 AS bigint) ORDER BY t."level" DESC LIMIT 1) AS n UNION ALL SELECT CAST(e ->> 0 AS bigint), CAST(e ->> 1 AS bigint), CAST(e ->> 2 AS text) FROM jsonb_array_elements(CAST(CAST($1 AS text) AS jsonb)) AS e) AS v CROSS JOIN LATERAL (SELECT coalesce(t."lock", '-infinity') AS settle_a FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" = v.p AND (t."due" IS NULL OR t."due" <= (statement_timestamp() AT TIME ZONE 'UTC')) ORDER BY t."due" NULLS FIRST, t."uuid" LIMIT CAST(1000 AS bigint)) AS r LIMIT CAST(1000 AS bigint)), settle_2 AS MATERIALIZED (SELECT coalesce(t."lock", '-infinity') AS settle_a FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" IS NULL AND (t."due" IS NULL OR t."due" <= (statement_timestamp() AT TIME ZONE 'UTC')) ORDER BY t."level" DESC, t."due" NULLS FIRST, t."uuid" LIMIT greatest(CAST(1000 AS bigint) - (SELECT count(*) FROM settle_1), 0)) SELECT * FROM settle_1 UNION ALL SELECT * FROM settle_2) AS l0 UNION ALL SELECT settle_a FROM (SELECT r.settle_a FROM (WITH RECURSIVE settle_levels(p) AS ((SELECT CASE WHEN CAST(CAST($1 AS text) AS jsonb) IS NULL THEN (SELECT t."level" AS p FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" IS NOT NULL ORDER BY t."level" DESC LIMIT 1) END) UNION ALL SELECT (SELECT t."level" AS p FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" < o.p ORDER BY t."level" DESC LIMIT 1) FROM settle_levels AS o WHERE o.p IS NOT NULL) SELECT p, CAST(NULL AS bigint) AS settle_floor, CAST(NULL AS text) AS settle_id FROM settle_levels WHERE p IS NOT NULL UNION ALL SELECT n.p, NULL, NULL FROM (SELECT t."level" AS p FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" > CAST(CAST(CAST($1 AS text) AS jsonb) -> 0 ->> 0 AS bigint) ORDER BY t."level" DESC LIMIT 1) AS n UNION ALL SELECT CAST(e ->> 0 AS bigint), CAST(e ->> 1 AS bigint), CAST(e ->> 2 AS text) FROM jsonb_array_elements(CAST(CAST($1 AS text) AS jsonb)) AS e) AS v CROSS JOIN LATERAL (SELECT (t."due" AT TIME ZONE 'UTC') AS settle_a FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" = v.p AND t."due" > (statement_timestamp() AT TIME ZONE 'UTC') ORDER BY t."due" NULLS FIRST, t."uuid" LIMIT 1) AS r) AS l1 UNION ALL SELECT settle_a FROM (SELECT (t."due" AT TIME ZONE 'UTC') AS settle_a FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" IS NULL AND t."due" > (statement_timestamp() AT TIME ZONE 'UTC') ORDER BY t."level" DESC, t."due" NULLS FIRST, t."uuid" LIMIT 1) AS l2) AS a;

-- claim :floors :group :limit :lease
WITH settle_1 AS MATERIALIZED (SELECT r.settle_a FROM (WITH RECURSIVE settle_levels(p) AS ((SELECT CASE WHEN CAST(CAST($1 AS text) AS jsonb) IS NULL THEN (SELECT t."level" AS p FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" IS NOT NULL ORDER BY t."level" DESC LIMIT 1) END) UNION ALL SELECT (SELECT t."level" AS p FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" < o.p ORDER BY t."level" DESC LIMIT 1) FROM settle_levels AS o WHERE o.p IS NOT NULL) SELECT p, CAST(NULL AS bigint) AS settle_floor, CAST(NULL AS text) AS settle_id FROM settle_levels WHERE p IS NOT NULL UNION ALL SELECT n.p, NULL, NULL FROM (SELECT t."level" AS p FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" > CAST(CAST(CAST($1 AS text) AS jsonb) -> 0 ->> 0 AS bigint) ORDER BY t."level" DESC LIMIT 1) AS n UNION ALL SELECT CAST(e ->> 0 AS bigint), CAST(e ->> 1 AS bigint), CAST(e ->> 2 AS text) FROM jsonb_array_elements(CAST(CAST($1 AS text) AS jsonb)) AS e) AS v CROSS JOIN LATERAL (SELECT t."uuid" AS settle_a FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" = v.p AND (t."due" IS NULL OR t."due" <= (statement_timestamp() AT TIME ZONE 'UTC')) AND (t."lock" IS NULL OR t."lock" <= statement_timestamp()) ORDER BY t."due" NULLS FIRST, t."uuid" LIMIT CAST($3 AS bigint) FOR NO KEY UPDATE OF t SKIP LOCKED) AS r LIMIT CAST($3 AS bigint)), settle_2 AS MATERIALIZED (SELECT t."uuid" AS settle_a FROM "own ""jobs""" AS t WHERE t."kind" = CAST($2 AS text) AND t."level" IS NULL AND (t."due" IS NULL OR t."due" <= (statement_timestamp() AT TIME ZONE 'UTC')) AND (t."lock" IS NULL OR t."lock" <= statement_timestamp()) ORDER BY t."level" DESC, t."due" NULLS FIRST, t."uuid" LIMIT greatest(CAST($3 AS bigint) - (SELECT count(*) FROM settle_1), 0) FOR NO KEY UPDATE OF t SKIP LOCKED) UPDATE "own ""jobs""" AS t SET "try" = least(greatest(coalesce(t."try", 1), 1), 32766) + 1, "lock" = statement_timestamp() + (CAST($4 AS bigint) + 500000) * interval '1 microsecond' WHERE t."uuid" = ANY(ARRAY(SELECT * FROM settle_1 UNION ALL SELECT * FROM settle_2)) RETURNING CAST(t."uuid" AS text), CAST(t."body" AS text), CAST(least(greatest(coalesce(t."try", 1), 1), 2147483647) AS bigint), t."lock", CASE WHEN isfinite(t."due") THEN CAST(extract(epoch FROM t."due") * 1000000 AS bigint) WHEN t."due" = 'infinity' THEN 9223372036854775807 ELSE -9223372036854775808 END, CAST(t."level" AS bigint);

-- renew :next_token :id :attempt :token
UPDATE "own ""jobs""" SET "lock" = CAST($1 AS timestamp with time zone) WHERE "uuid" = CAST(CAST($2 AS text) AS uuid) AND "try" = CAST($3 AS bigint) AND "lock" = CAST($4 AS timestamp with time zone);

-- renew many :ids :attempts :tokens :next_tokens
UPDATE "own ""jobs""" AS t SET "lock" = CAST(s.settle_next_token AS timestamp with time zone) FROM unnest(CAST($1 AS text[]), CAST($2 AS bigint[]), CAST($3 AS timestamp with time zone[]), CAST($4 AS timestamp with time zone[])) WITH ORDINALITY AS s(settle_id, settle_attempt, settle_token, settle_next_token, settle_n) WHERE t."uuid" = CAST(CAST(s.settle_id AS text) AS uuid) AND t."try" = s.settle_attempt AND t."lock" = s.settle_token RETURNING s.settle_n - 1;

-- holding :ids :attempts :tokens
WITH settle_mine AS MATERIALIZED (SELECT s.settle_n - 1 AS settle_n, t."uuid" AS settle_id FROM "own ""jobs""" AS t JOIN unnest(CAST($1 AS text[]), CAST($2 AS bigint[]), CAST($3 AS timestamp with time zone[])) WITH ORDINALITY AS s(settle_id, settle_attempt, settle_token, settle_n) ON t."uuid" = CAST(CAST(s.settle_id AS text) AS uuid) AND t."try" = s.settle_attempt AND t."lock" = s.settle_token), settle_free AS MATERIALIZED (SELECT x."uuid" AS settle_id FROM "own ""jobs""" AS x WHERE x."uuid" = ANY(ARRAY(SELECT settle_id FROM settle_mine)) FOR UPDATE SKIP LOCKED) SELECT m.settle_n, CASE WHEN EXISTS (SELECT 1 FROM settle_free AS f WHERE f.settle_id = m.settle_id) THEN 1 ELSE 0 END FROM settle_mine AS m;

-- holding :ids :attempts :tokens
WITH settle_mine AS MATERIALIZED (SELECT s.settle_n - 1 AS settle_n, t."uuid" AS settle_id FROM "own ""jobs""" AS t JOIN unnest(CAST($1 AS text[]), CAST($2 AS bigint[]), CAST($3 AS timestamp with time zone[])) WITH ORDINALITY AS s(settle_id, settle_attempt, settle_token, settle_n) ON t."uuid" = CAST(CAST(s.settle_id AS text) AS uuid) AND t."try" = s.settle_attempt AND t."lock" = s.settle_token), settle_free AS MATERIALIZED (SELECT x."uuid" AS settle_id FROM "own ""jobs""" AS x WHERE x."uuid" = ANY(ARRAY(SELECT settle_id FROM settle_mine)) FOR NO KEY UPDATE SKIP LOCKED) SELECT m.settle_n, CASE WHEN EXISTS (SELECT 1 FROM settle_free AS f WHERE f.settle_id = m.settle_id) THEN 1 ELSE 0 END FROM settle_mine AS m;

-- ack :id :attempt :token
DELETE FROM "own ""jobs""" WHERE "uuid" = CAST(CAST($1 AS text) AS uuid) AND "try" = CAST($2 AS bigint) AND "lock" = CAST($3 AS timestamp with time zone);

-- ack many :ids :attempts :tokens
DELETE FROM "own ""jobs""" AS t USING unnest(CAST($1 AS text[]), CAST($2 AS bigint[]), CAST($3 AS timestamp with time zone[])) WITH ORDINALITY AS s(settle_id, settle_attempt, settle_token, settle_n) WHERE t."uuid" = CAST(CAST(s.settle_id AS text) AS uuid) AND t."try" = s.settle_attempt AND t."lock" = s.settle_token RETURNING s.settle_n - 1;

-- drop :id :attempt :token
DELETE FROM "own ""jobs""" WHERE "uuid" = CAST(CAST($1 AS text) AS uuid) AND "try" = CAST($2 AS bigint) AND "lock" = CAST($3 AS timestamp with time zone);

-- drop many :ids :attempts :tokens
DELETE FROM "own ""jobs""" AS t USING unnest(CAST($1 AS text[]), CAST($2 AS bigint[]), CAST($3 AS timestamp with time zone[])) WITH ORDINALITY AS s(settle_id, settle_attempt, settle_token, settle_n) WHERE t."uuid" = CAST(CAST(s.settle_id AS text) AS uuid) AND t."try" = s.settle_attempt AND t."lock" = s.settle_token RETURNING s.settle_n - 1;

-- retry :id :attempt :token
UPDATE "own ""jobs""" SET "lock" = NULL WHERE "uuid" = CAST(CAST($1 AS text) AS uuid) AND "try" = CAST($2 AS bigint) AND "lock" = CAST($3 AS timestamp with time zone);

-- retry many :ids :attempts :tokens
UPDATE "own ""jobs""" AS t SET "lock" = NULL FROM unnest(CAST($1 AS text[]), CAST($2 AS bigint[]), CAST($3 AS timestamp with time zone[])) WITH ORDINALITY AS s(settle_id, settle_attempt, settle_token, settle_n) WHERE t."uuid" = CAST(CAST(s.settle_id AS text) AS uuid) AND t."try" = s.settle_attempt AND t."lock" = s.settle_token RETURNING s.settle_n - 1;

-- retryafter :delay :id :attempt :token
UPDATE "own ""jobs""" SET "due" = (statement_timestamp() AT TIME ZONE 'UTC') + (CAST($1 AS bigint) + 500) * interval '1 microsecond', "lock" = NULL WHERE "uuid" = CAST(CAST($2 AS text) AS uuid) AND "try" = CAST($3 AS bigint) AND "lock" = CAST($4 AS timestamp with time zone);

-- retryafter many :ids :attempts :tokens :delays
UPDATE "own ""jobs""" AS t SET "due" = (statement_timestamp() AT TIME ZONE 'UTC') + (CAST(s.settle_delay AS bigint) + 500) * interval '1 microsecond', "lock" = NULL FROM unnest(CAST($1 AS text[]), CAST($2 AS bigint[]), CAST($3 AS timestamp with time zone[]), CAST($4 AS bigint[])) WITH ORDINALITY AS s(settle_id, settle_attempt, settle_token, settle_delay, settle_n) WHERE t."uuid" = CAST(CAST(s.settle_id AS text) AS uuid) AND t."try" = s.settle_attempt AND t."lock" = s.settle_token RETURNING s.settle_n - 1;

-- deadletter :dead :id :attempt :token
UPDATE "own ""jobs""" SET "kind" = CAST($1 AS text), "lock" = NULL WHERE "uuid" = CAST(CAST($2 AS text) AS uuid) AND "try" = CAST($3 AS bigint) AND "lock" = CAST($4 AS timestamp with time zone);

-- deadletter many :dead :ids :attempts :tokens
UPDATE "own ""jobs""" AS t SET "kind" = CAST($1 AS text), "lock" = NULL FROM unnest(CAST($2 AS text[]), CAST($3 AS bigint[]), CAST($4 AS timestamp with time zone[])) WITH ORDINALITY AS s(settle_id, settle_attempt, settle_token, settle_n) WHERE t."uuid" = CAST(CAST(s.settle_id AS text) AS uuid) AND t."try" = s.settle_attempt AND t."lock" = s.settle_token RETURNING s.settle_n - 1;

-- release :attempt :id :token
UPDATE "own ""jobs""" SET "try" = $1 - 1, "lock" = NULL WHERE "uuid" = CAST(CAST($2 AS text) AS uuid) AND "try" = CAST($1 AS bigint) AND "lock" = CAST($3 AS timestamp with time zone);

-- release many :ids :attempts :tokens
UPDATE "own ""jobs""" AS t SET "try" = s.settle_attempt - 1, "lock" = NULL FROM unnest(CAST($1 AS text[]), CAST($2 AS bigint[]), CAST($3 AS timestamp with time zone[])) WITH ORDINALITY AS s(settle_id, settle_attempt, settle_token, settle_n) WHERE t."uuid" = CAST(CAST(s.settle_id AS text) AS uuid) AND t."try" = s.settle_attempt AND t."lock" = s.settle_token RETURNING s.settle_n - 1;

-- free :id :attempt :token
UPDATE "own ""jobs""" SET "lock" = NULL WHERE "uuid" = CAST(CAST($1 AS text) AS uuid) AND "try" = CAST($2 AS bigint) AND "lock" = CAST($3 AS timestamp with time zone);

-- free many :ids :attempts :tokens
UPDATE "own ""jobs""" AS t SET "lock" = NULL FROM unnest(CAST($1 AS text[]), CAST($2 AS bigint[]), CAST($3 AS timestamp with time zone[])) WITH ORDINALITY AS s(settle_id, settle_attempt, settle_token, settle_n) WHERE t."uuid" = CAST(CAST(s.settle_id AS text) AS uuid) AND t."try" = s.settle_attempt AND t."lock" = s.settle_token RETURNING s.settle_n - 1;

-- committed :transaction
SELECT CASE pg_xact_status(CAST(CAST($1 AS text) AS xid8)) WHEN 'committed' THEN 1 WHEN 'aborted' THEN 0 END;

