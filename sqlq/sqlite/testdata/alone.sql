CREATE TABLE IF NOT EXISTS "jobs" (
    "id" INTEGER PRIMARY KEY AUTOINCREMENT,
    "attempt" INTEGER NOT NULL DEFAULT 1,
    "retry_after" INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    "locked_until" INTEGER,
    "msg_key" TEXT,
    "headers" TEXT,
    "cause" TEXT,
    "payload" TEXT NOT NULL
);

CREATE INDEX IF NOT EXISTS "jobs_claim" ON "jobs" (`retry_after`, `id`);

-- publish :now :delay :headers :key :payload
INSERT INTO "jobs" ("attempt", "retry_after", "headers", "msg_key", "payload") VALUES (1, ?1 + ?2, ?3, ?4, ?5);

-- publish with an id :id :now :delay :headers :key :payload
INSERT INTO "jobs" ("id", "attempt", "retry_after", "headers", "msg_key", "payload") VALUES (?1, 1, ?2 + ?3, ?4, ?5, ?6);

-- due :now
SELECT min(a) - ?1, min(a) FILTER (WHERE a > ?1) - ?1 FROM (SELECT a FROM (SELECT coalesce(t."locked_until", 0) AS a FROM "jobs" AS t WHERE 1 = 1 AND t."retry_after" <= ?1 ORDER BY t."retry_after", t."id" LIMIT 1000) UNION ALL SELECT a FROM (SELECT t."retry_after" AS a FROM "jobs" AS t WHERE 1 = 1 AND t."retry_after" > ?1 ORDER BY t."retry_after", t."id" LIMIT 1));

-- claim :now :lease :limit
UPDATE "jobs" SET "attempt" = min(max(CAST(coalesce("attempt", 1) AS INTEGER), 1), 2147483646) + 1, "locked_until" = ?1 + ?2 WHERE "id" IN (SELECT t."id" AS a FROM "jobs" AS t WHERE 1 = 1 AND t."retry_after" <= ?1 AND (t."locked_until" IS NULL OR t."locked_until" <= ?1) ORDER BY t."retry_after", t."id" LIMIT ?3) RETURNING "id", "payload", "attempt", "locked_until", coalesce("retry_after", -9223372036854775808), "headers", "msg_key";

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

-- deadletter :cause :id :attempt :token
INSERT INTO "jobs_dead" ("id", "attempt", "retry_after", "locked_until", "msg_key", "headers", "cause", "payload") SELECT iif((SELECT count(*) FROM "jobs_dead" AS x WHERE x."id" = t."id"), NULL, t."id"), "attempt", "retry_after", NULL, "msg_key", "headers", ?1, "payload" FROM "jobs" AS t WHERE "id" = ?2 AND "attempt" = ?3 AND "locked_until" = ?4;

-- deadletter :id :attempt :token
DELETE FROM "jobs" WHERE "id" = ?1 AND "attempt" = ?2 AND "locked_until" = ?3;

-- release :attempt :id :token
UPDATE "jobs" SET "attempt" = ?1 - 1, "locked_until" = NULL WHERE "id" = ?2 AND "attempt" = ?1 AND "locked_until" = ?3;

-- free :id :attempt :token
UPDATE "jobs" SET "locked_until" = NULL WHERE "id" = ?1 AND "attempt" = ?2 AND "locked_until" = ?3;

-- confirm :id :attempt :token
UPDATE "jobs" SET "locked_until" = "locked_until" WHERE "id" = ?1 AND "attempt" = ?2 AND "locked_until" = ?3;

