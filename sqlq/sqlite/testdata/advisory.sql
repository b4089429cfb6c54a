CREATE TABLE IF NOT EXISTS "jobs" (
    "id" INTEGER PRIMARY KEY AUTOINCREMENT,
    "queue" TEXT NOT NULL,
    "attempt" INTEGER NOT NULL DEFAULT 1,
    "retry_after" INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    "msg_key" TEXT,
    "headers" TEXT,
    "cause" TEXT,
    "payload" TEXT NOT NULL
);

CREATE INDEX IF NOT EXISTS "jobs_claim" ON "jobs" (`queue`, `retry_after`, `id`);

-- publish :group :now :delay :headers :key :payload
INSERT INTO "jobs" ("queue", "attempt", "retry_after", "headers", "msg_key", "payload") VALUES (?1, 1, ?2 + ?3, ?4, ?5, ?6);

-- publish with an id :id :group :now :delay :headers :key :payload
INSERT INTO "jobs" ("id", "queue", "attempt", "retry_after", "headers", "msg_key", "payload") VALUES (?1, ?2, 1, ?3 + ?4, ?5, ?6, ?7);

-- due :now :group
SELECT min(a) - ?1, min(a) FILTER (WHERE a > ?1) - ?1 FROM (SELECT a FROM (SELECT 0 AS a FROM "jobs" AS t WHERE t."queue" = ?2 AND t."retry_after" <= ?1 ORDER BY t."retry_after", t."id" LIMIT 1000) UNION ALL SELECT a FROM (SELECT t."retry_after" AS a FROM "jobs" AS t WHERE t."queue" = ?2 AND t."retry_after" > ?1 ORDER BY t."retry_after", t."id" LIMIT 1));

-- candidates :group :now :held :limit
SELECT t."id" AS a, 'it''s ' || coalesce(CAST(t."msg_key" AS TEXT), '') || '/' || coalesce(CAST(t."id" AS TEXT), '') AS b FROM "jobs" AS t WHERE t."queue" = ?1 AND t."retry_after" <= ?2 AND 'it''s ' || coalesce(CAST(t."msg_key" AS TEXT), '') || '/' || coalesce(CAST(t."id" AS TEXT), '') NOT IN (SELECT value FROM json_each(?3)) ORDER BY t."retry_after", t."id" LIMIT ?4;

-- take :id :group :now
UPDATE "jobs" SET "attempt" = min(max(CAST(coalesce("attempt", 1) AS INTEGER), 1), 2147483646) + 1 WHERE "id" = ?1 AND "queue" = ?2 AND "retry_after" <= ?3 RETURNING "id", "payload", "attempt", coalesce("retry_after", -9223372036854775808), "headers", "msg_key";

-- ack :id :attempt
DELETE FROM "jobs" WHERE "id" = ?1 AND "attempt" = ?2;

-- drop :id :attempt
DELETE FROM "jobs" WHERE "id" = ?1 AND "attempt" = ?2;

-- retry :cause :id :attempt
UPDATE "jobs" SET "cause" = ?1 WHERE "id" = ?2 AND "attempt" = ?3;

-- retryafter :now :delay :cause :id :attempt
UPDATE "jobs" SET "retry_after" = ?1 + ?2, "cause" = ?3 WHERE "id" = ?4 AND "attempt" = ?5;

-- deadletter :dead :cause :id :attempt
UPDATE "jobs" SET "queue" = ?1, "cause" = ?2 WHERE "id" = ?3 AND "attempt" = ?4;

-- release :attempt :id
UPDATE "jobs" SET "attempt" = ?1 - 1 WHERE "id" = ?2 AND "attempt" = ?1;

-- confirm :id :attempt
UPDATE "jobs" SET "attempt" = "attempt" WHERE "id" = ?1 AND "attempt" = ?2;

