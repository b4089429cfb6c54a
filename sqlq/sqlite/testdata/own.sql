-- publish :now :delay :payload
INSERT INTO "own jobs" ("try", "due", "body") VALUES (1, ?1 + ?2, ?3);

-- publish with an id :id :now :delay :payload
INSERT INTO "own jobs" ("uuid", "try", "due", "body") VALUES (?1, 1, ?2 + ?3, ?4);

-- due :now
SELECT min(a) - ?1, min(a) FILTER (WHERE a > ?1) - ?1 FROM (SELECT a FROM (SELECT a FROM (SELECT * FROM (SELECT coalesce(t."lock", 0) AS a FROM "own jobs" AS t WHERE 1 = 1 AND t."due" IS NULL ORDER BY t."due", t."uuid" LIMIT 1000) UNION ALL SELECT * FROM (SELECT coalesce(t."lock", 0) AS a FROM "own jobs" AS t WHERE 1 = 1 AND t."due" <= ?1 ORDER BY t."due", t."uuid" LIMIT 1000) LIMIT 1000)) UNION ALL SELECT a FROM (SELECT t."due" AS a FROM "own jobs" AS t WHERE 1 = 1 AND t."due" > ?1 ORDER BY t."due", t."uuid" LIMIT 1));

-- claim :now :lease :limit
UPDATE "own jobs" SET "try" = min(max(CAST(coalesce("try", 1) AS INTEGER), 1), 2147483646) + 1, "lock" = ?1 + ?2 WHERE "uuid" IN (SELECT a FROM (SELECT * FROM (SELECT t."uuid" AS a FROM "own jobs" AS t WHERE 1 = 1 AND t."due" IS NULL AND (t."lock" IS NULL OR t."lock" <= ?1) ORDER BY t."due", t."uuid" LIMIT ?3) UNION ALL SELECT * FROM (SELECT t."uuid" AS a FROM "own jobs" AS t WHERE 1 = 1 AND t."due" <= ?1 AND (t."lock" IS NULL OR t."lock" <= ?1) ORDER BY t."due", t."uuid" LIMIT ?3) LIMIT ?3)) RETURNING "uuid", "body", "try", "lock", coalesce("due", -9223372036854775808);

-- renew :next_token :id :attempt :token
UPDATE "own jobs" SET "lock" = ?1 WHERE "uuid" = ?2 AND "try" = ?3 AND "lock" = ?4;

-- ack :id :attempt :token
DELETE FROM "own jobs" WHERE "uuid" = ?1 AND "try" = ?2 AND "lock" = ?3;

-- drop :id :attempt :token
DELETE FROM "own jobs" WHERE "uuid" = ?1 AND "try" = ?2 AND "lock" = ?3;

-- retry :id :attempt :token
UPDATE "own jobs" SET "lock" = NULL WHERE "uuid" = ?1 AND "try" = ?2 AND "lock" = ?3;

-- retryafter :now :delay :id :attempt :token
UPDATE "own jobs" SET "due" = ?1 + ?2, "lock" = NULL WHERE "uuid" = ?3 AND "try" = ?4 AND "lock" = ?5;

-- release :attempt :id :token
UPDATE "own jobs" SET "try" = ?1 - 1, "lock" = NULL WHERE "uuid" = ?2 AND "try" = ?1 AND "lock" = ?3;

-- free :id :attempt :token
UPDATE "own jobs" SET "lock" = NULL WHERE "uuid" = ?1 AND "try" = ?2 AND "lock" = ?3;

-- confirm :id :attempt :token
UPDATE "own jobs" SET "lock" = "lock" WHERE "uuid" = ?1 AND "try" = ?2 AND "lock" = ?3;

