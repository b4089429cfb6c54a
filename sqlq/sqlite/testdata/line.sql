CREATE TABLE IF NOT EXISTS "jobs" (
    "id" INTEGER PRIMARY KEY AUTOINCREMENT,
    "queue" TEXT NOT NULL,
    "attempt" INTEGER NOT NULL DEFAULT 1,
    "retry_after" INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    "locked_until" INTEGER,
    "headers" TEXT,
    "cause" TEXT,
    "payload" TEXT NOT NULL
);

CREATE INDEX IF NOT EXISTS "jobs_claim" ON "jobs" (`queue`, `retry_after`, `id`);

CREATE INDEX IF NOT EXISTS "jobs_held" ON "jobs" (`queue`, `locked_until`) WHERE `locked_until` IS NOT NULL;

-- publish :group :now :delay :headers :payload
INSERT INTO "jobs" ("queue", "attempt", "retry_after", "headers", "payload") VALUES (?1, 1, ?2 + ?3, ?4, ?5);

-- publish with an id :id :group :now :delay :headers :payload
INSERT INTO "jobs" ("id", "queue", "attempt", "retry_after", "headers", "payload") VALUES (?1, ?2, 1, ?3 + ?4, ?5, ?6);

-- due :now :group
SELECT min(a) - ?1, min(a) FILTER (WHERE a > ?1) - ?1 FROM (SELECT a FROM (SELECT coalesce(t."locked_until", 0) AS a FROM "jobs" AS t WHERE t."queue" = ?2 AND t."retry_after" <= ?1 ORDER BY t."retry_after", t."id" LIMIT 1000) UNION ALL SELECT a FROM (SELECT t."retry_after" AS a FROM "jobs" AS t WHERE t."queue" = ?2 AND t."retry_after" > ?1 ORDER BY t."retry_after", t."id" LIMIT 1));

-- claim :now :lease :group :limit
UPDATE "jobs" SET "attempt" = min(max(CAST(coalesce("attempt", 1) AS INTEGER), 1), 2147483646) + 1, "locked_until" = ?1 + ?2 WHERE "id" IN (SELECT t."id" FROM "jobs" AS t WHERE t."queue" = ?3 AND t."retry_after" <= ?1 AND NOT EXISTS (SELECT 1 FROM "jobs" AS o WHERE o."queue" = ?3 AND o."locked_until" > ?1) ORDER BY t."retry_after", t."id" LIMIT min(?4, 1)) RETURNING "id", "payload", "attempt", "locked_until", coalesce("retry_after", -9223372036854775808), "headers";

-- renew :next_token :id :attempt :token
UPDATE "jobs" SET "locked_until" = ?1 WHERE "id" = ?2 AND "attempt" = ?3 AND "locked_until" = ?4;

-- ack :id :attempt :token
DELETE FROM "jobs" WHERE "id" = ?1 AND "attempt" = ?2 AND "locked_until" = ?3;

-- drop :id :attempt :token
DELETE FROM "jobs" WHERE "id" = ?1 AND "attempt" = ?2 AND "locked_until" = ?3;

-- retry :cause :id :attempt :token
UPDATE "jobs" SET "locked_until" = NULL, "cause" = ?1 WHERE "id" = ?2 AND "attempt" = ?3 AND "locked_until" = ?4;

-- retryafter :now :delay :cause :id :attempt :token
UPDATE "jobs" SET "retry_after" = ?1 + ?2, "locked_until" = NULL, "cause" = ?3 WHERE "id" = ?4 AND "attempt" = ?5 AND "locked_until" = ?6;

-- deadletter :dead :cause :id :attempt :token
UPDATE "jobs" SET "queue" = ?1, "locked_until" = NULL, "cause" = ?2 WHERE "id" = ?3 AND "attempt" = ?4 AND "locked_until" = ?5;

-- release :attempt :id :token
UPDATE "jobs" SET "attempt" = ?1 - 1, "locked_until" = NULL WHERE "id" = ?2 AND "attempt" = ?1 AND "locked_until" = ?3;

-- free :id :attempt :token
UPDATE "jobs" SET "locked_until" = NULL WHERE "id" = ?1 AND "attempt" = ?2 AND "locked_until" = ?3;

-- confirm :id :attempt :token
UPDATE "jobs" SET "locked_until" = "locked_until" WHERE "id" = ?1 AND "attempt" = ?2 AND "locked_until" = ?3;

