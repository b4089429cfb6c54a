CREATE TABLE IF NOT EXISTS "jobs" (
    "id" INTEGER PRIMARY KEY AUTOINCREMENT,
    "queue" TEXT NOT NULL,
    "attempt" INTEGER NOT NULL DEFAULT 1,
    "priority" INTEGER NOT NULL DEFAULT 0,
    "retry_after" INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    "locked_until" INTEGER,
    "processed_at" INTEGER,
    "msg_key" TEXT,
    "headers" TEXT,
    "cause" TEXT,
    "payload" TEXT NOT NULL
);

CREATE INDEX IF NOT EXISTS "jobs_claim" ON "jobs" (`queue`, `priority` DESC, `retry_after`, `id`) WHERE `processed_at` IS NULL;

CREATE INDEX IF NOT EXISTS "jobs_processed" ON "jobs" (`queue`, `processed_at`) WHERE `processed_at` IS NOT NULL;

-- publish :group :now :delay :priority :headers :key :payload
INSERT INTO "jobs" ("queue", "attempt", "retry_after", "priority", "headers", "msg_key", "payload") VALUES (?1, 1, ?2 + ?3, ?4, ?5, ?6, ?7);

-- publish with an id :id :group :now :delay :priority :headers :key :payload
INSERT INTO "jobs" ("id", "queue", "attempt", "retry_after", "priority", "headers", "msg_key", "payload") VALUES (?1, ?2, 1, ?3 + ?4, ?5, ?6, ?7, ?8);

-- due :now :group
SELECT min(a) - ?1, min(a) FILTER (WHERE a > ?1) - ?1 FROM (SELECT a FROM (WITH RECURSIVE settle_levels(p) AS NOT MATERIALIZED (SELECT (SELECT t."priority" FROM "jobs" AS t WHERE t."queue" = ?2 AND t."processed_at" IS NULL ORDER BY t."priority" DESC LIMIT 1) UNION ALL SELECT (SELECT t."priority" FROM "jobs" AS t WHERE t."queue" = ?2 AND t."processed_at" IS NULL AND t."priority" < w.p ORDER BY t."priority" DESC LIMIT 1) FROM settle_levels AS w WHERE w.p IS NOT NULL) SELECT coalesce(t."locked_until", 0) AS a FROM settle_levels AS v CROSS JOIN "jobs" AS t WHERE t."queue" = ?2 AND t."processed_at" IS NULL AND t."priority" IS v.p AND t."retry_after" <= ?1 LIMIT 1000) UNION ALL SELECT a FROM (WITH RECURSIVE settle_levels(p) AS NOT MATERIALIZED (SELECT (SELECT t."priority" FROM "jobs" AS t WHERE t."queue" = ?2 AND t."processed_at" IS NULL ORDER BY t."priority" DESC LIMIT 1) UNION ALL SELECT (SELECT t."priority" FROM "jobs" AS t WHERE t."queue" = ?2 AND t."processed_at" IS NULL AND t."priority" < w.p ORDER BY t."priority" DESC LIMIT 1) FROM settle_levels AS w WHERE w.p IS NOT NULL) SELECT (SELECT t."retry_after" FROM "jobs" AS t WHERE t."queue" = ?2 AND t."processed_at" IS NULL AND t."priority" IS v.p AND t."retry_after" > ?1 ORDER BY t."retry_after", t."id" LIMIT 1) AS a FROM settle_levels AS v LIMIT 1000));

-- claim :now :lease :group :limit
UPDATE "jobs" SET "attempt" = min(max(CAST(coalesce("attempt", 1) AS INTEGER), 1), 2147483646) + 1, "locked_until" = ?1 + ?2 WHERE "id" IN (WITH RECURSIVE settle_levels(p) AS NOT MATERIALIZED (SELECT (SELECT t."priority" FROM "jobs" AS t WHERE t."queue" = ?3 AND t."processed_at" IS NULL ORDER BY t."priority" DESC LIMIT 1) UNION ALL SELECT (SELECT t."priority" FROM "jobs" AS t WHERE t."queue" = ?3 AND t."processed_at" IS NULL AND t."priority" < w.p ORDER BY t."priority" DESC LIMIT 1) FROM settle_levels AS w WHERE w.p IS NOT NULL) SELECT t."id" AS a FROM settle_levels AS v CROSS JOIN "jobs" AS t WHERE t."queue" = ?3 AND t."processed_at" IS NULL AND t."priority" IS v.p AND t."retry_after" <= ?1 AND (t."locked_until" IS NULL OR t."locked_until" <= ?1) LIMIT ?4) RETURNING "id", "payload", "attempt", "locked_until", coalesce("retry_after", -9223372036854775808), "priority", "headers", "msg_key";

-- renew :next_token :id :attempt :token
UPDATE "jobs" SET "locked_until" = ?1 WHERE "id" = ?2 AND "attempt" = ?3 AND "locked_until" = ?4;

-- ack :now :id :attempt :token
UPDATE "jobs" SET "processed_at" = ?1, "locked_until" = NULL WHERE "id" = ?2 AND "attempt" = ?3 AND "locked_until" = ?4;

-- drop :now :cause :id :attempt :token
UPDATE "jobs" SET "processed_at" = ?1, "locked_until" = NULL, "cause" = ?2 WHERE "id" = ?3 AND "attempt" = ?4 AND "locked_until" = ?5;

-- retry :cause :id :attempt :token
UPDATE "jobs" SET "locked_until" = NULL, "cause" = ?1 WHERE "id" = ?2 AND "attempt" = ?3 AND "locked_until" = ?4;

-- retryafter :now :delay :cause :id :attempt :token
UPDATE "jobs" SET "retry_after" = ?1 + ?2, "locked_until" = NULL, "cause" = ?3 WHERE "id" = ?4 AND "attempt" = ?5 AND "locked_until" = ?6;

-- deadletter :cause :id :attempt :token
INSERT INTO "jobs_dead" ("id", "queue", "attempt", "priority", "retry_after", "locked_until", "processed_at", "msg_key", "headers", "cause", "payload") SELECT iif((SELECT count(*) FROM "jobs_dead" AS x WHERE x."id" = t."id"), NULL, t."id"), "queue", "attempt", "priority", "retry_after", NULL, "processed_at", "msg_key", "headers", ?1, "payload" FROM "jobs" AS t WHERE "id" = ?2 AND "attempt" = ?3 AND "locked_until" = ?4;

-- deadletter :id :attempt :token
DELETE FROM "jobs" WHERE "id" = ?1 AND "attempt" = ?2 AND "locked_until" = ?3;

-- release :attempt :id :token
UPDATE "jobs" SET "attempt" = ?1 - 1, "locked_until" = NULL WHERE "id" = ?2 AND "attempt" = ?1 AND "locked_until" = ?3;

-- free :id :attempt :token
UPDATE "jobs" SET "locked_until" = NULL WHERE "id" = ?1 AND "attempt" = ?2 AND "locked_until" = ?3;

-- confirm :id :attempt :token
UPDATE "jobs" SET "locked_until" = "locked_until" WHERE "id" = ?1 AND "attempt" = ?2 AND "locked_until" = ?3;

