-- publish :now :delay :priority :payload
INSERT INTO "own jobs" ("try", "due", "level", "body") VALUES (1, ?1 + ?2, ?3, ?4);

-- publish with an id :id :now :delay :priority :payload
INSERT INTO "own jobs" ("uuid", "try", "due", "level", "body") VALUES (?1, 1, ?2 + ?3, ?4, ?5);

-- due :now
SELECT min(a) - ?1, min(a) FILTER (WHERE a > ?1) - ?1 FROM (SELECT a FROM (SELECT a FROM (SELECT * FROM (WITH RECURSIVE settle_levels(p) AS NOT MATERIALIZED (SELECT (SELECT t."level" FROM "own jobs" AS t WHERE 1 = 1 ORDER BY t."level" DESC LIMIT 1) UNION ALL SELECT (SELECT t."level" FROM "own jobs" AS t WHERE 1 = 1 AND t."level" < w.p ORDER BY t."level" DESC LIMIT 1) FROM settle_levels AS w WHERE w.p IS NOT NULL) SELECT coalesce(t."lock", 0) AS a, v.p AS settle_level, t."due" AS settle_due, t."uuid" AS settle_id FROM settle_levels AS v CROSS JOIN "own jobs" AS t WHERE 1 = 1 AND t."level" IS v.p AND t."due" IS NULL LIMIT 1000) UNION ALL SELECT * FROM (WITH RECURSIVE settle_levels(p) AS NOT MATERIALIZED (SELECT (SELECT t."level" FROM "own jobs" AS t WHERE 1 = 1 ORDER BY t."level" DESC LIMIT 1) UNION ALL SELECT (SELECT t."level" FROM "own jobs" AS t WHERE 1 = 1 AND t."level" < w.p ORDER BY t."level" DESC LIMIT 1) FROM settle_levels AS w WHERE w.p IS NOT NULL) SELECT coalesce(t."lock", 0) AS a, v.p AS settle_level, t."due" AS settle_due, t."uuid" AS settle_id FROM settle_levels AS v CROSS JOIN "own jobs" AS t WHERE 1 = 1 AND t."level" IS v.p AND t."due" <= ?1 LIMIT 1000) ORDER BY settle_level DESC, settle_due, settle_id LIMIT 1000)) UNION ALL SELECT a FROM (WITH RECURSIVE settle_levels(p) AS NOT MATERIALIZED (SELECT (SELECT t."level" FROM "own jobs" AS t WHERE 1 = 1 ORDER BY t."level" DESC LIMIT 1) UNION ALL SELECT (SELECT t."level" FROM "own jobs" AS t WHERE 1 = 1 AND t."level" < w.p ORDER BY t."level" DESC LIMIT 1) FROM settle_levels AS w WHERE w.p IS NOT NULL) SELECT (SELECT t."due" FROM "own jobs" AS t WHERE 1 = 1 AND t."level" IS v.p AND t."due" > ?1 ORDER BY t."due", t."uuid" LIMIT 1) AS a FROM settle_levels AS v LIMIT 1000));

-- claim :now :lease :limit
UPDATE "own jobs" SET "try" = min(max(CAST(coalesce("try", 1) AS INTEGER), 1), 2147483646) + 1, "lock" = ?1 + ?2 WHERE "uuid" IN (SELECT a FROM (SELECT * FROM (WITH RECURSIVE settle_levels(p) AS NOT MATERIALIZED (SELECT (SELECT t."level" FROM "own jobs" AS t WHERE 1 = 1 ORDER BY t."level" DESC LIMIT 1) UNION ALL SELECT (SELECT t."level" FROM "own jobs" AS t WHERE 1 = 1 AND t."level" < w.p ORDER BY t."level" DESC LIMIT 1) FROM settle_levels AS w WHERE w.p IS NOT NULL) SELECT t."uuid" AS a, v.p AS settle_level, t."due" AS settle_due, t."uuid" AS settle_id FROM settle_levels AS v CROSS JOIN "own jobs" AS t WHERE 1 = 1 AND t."level" IS v.p AND t."due" IS NULL AND (t."lock" IS NULL OR t."lock" <= ?1) LIMIT ?3) UNION ALL SELECT * FROM (WITH RECURSIVE settle_levels(p) AS NOT MATERIALIZED (SELECT (SELECT t."level" FROM "own jobs" AS t WHERE 1 = 1 ORDER BY t."level" DESC LIMIT 1) UNION ALL SELECT (SELECT t."level" FROM "own jobs" AS t WHERE 1 = 1 AND t."level" < w.p ORDER BY t."level" DESC LIMIT 1) FROM settle_levels AS w WHERE w.p IS NOT NULL) SELECT t."uuid" AS a, v.p AS settle_level, t."due" AS settle_due, t."uuid" AS settle_id FROM settle_levels AS v CROSS JOIN "own jobs" AS t WHERE 1 = 1 AND t."level" IS v.p AND t."due" <= ?1 AND (t."lock" IS NULL OR t."lock" <= ?1) LIMIT ?3) ORDER BY settle_level DESC, settle_due, settle_id LIMIT ?3)) RETURNING "uuid", "body", "try", "lock", coalesce("due", -9223372036854775808), "level";

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

