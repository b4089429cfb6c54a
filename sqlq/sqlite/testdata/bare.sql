CREATE TABLE IF NOT EXISTS "jobs" (
    "id" INTEGER PRIMARY KEY AUTOINCREMENT,
    "locked_until" INTEGER,
    "payload" TEXT NOT NULL
);

-- publish :payload
INSERT INTO "jobs" ("payload") VALUES (?1);

-- publish with an id :id :payload
INSERT INTO "jobs" ("id", "payload") VALUES (?1, ?2);

-- due :now
SELECT min(a) - ?1, min(a) FILTER (WHERE a > ?1) - ?1 FROM (SELECT a FROM (SELECT coalesce(t."locked_until", 0) AS a FROM "jobs" AS t WHERE 1 = 1 ORDER BY t."id" LIMIT 1000));

-- claim :now :lease :limit
UPDATE "jobs" SET "locked_until" = ?1 + ?2 WHERE "id" IN (SELECT t."id" AS a FROM "jobs" AS t WHERE 1 = 1 AND (t."locked_until" IS NULL OR t."locked_until" <= ?1) ORDER BY t."id" LIMIT ?3) RETURNING "id", "payload", "locked_until";

-- renew :next_token :id :token
UPDATE "jobs" SET "locked_until" = ?1 WHERE "id" = ?2 AND "locked_until" = ?3;

-- ack :id :token
DELETE FROM "jobs" WHERE "id" = ?1 AND "locked_until" = ?2;

-- drop :id :token
DELETE FROM "jobs" WHERE "id" = ?1 AND "locked_until" = ?2;

-- retry :id :token
UPDATE "jobs" SET "locked_until" = NULL WHERE "id" = ?1 AND "locked_until" = ?2;

-- retryafter :id :token
UPDATE "jobs" SET "locked_until" = NULL WHERE "id" = ?1 AND "locked_until" = ?2;

-- release :id :token
UPDATE "jobs" SET "locked_until" = NULL WHERE "id" = ?1 AND "locked_until" = ?2;

-- free :id :token
UPDATE "jobs" SET "locked_until" = NULL WHERE "id" = ?1 AND "locked_until" = ?2;

-- confirm :id :token
UPDATE "jobs" SET "locked_until" = "locked_until" WHERE "id" = ?1 AND "locked_until" = ?2;

