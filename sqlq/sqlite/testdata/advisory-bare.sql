CREATE TABLE IF NOT EXISTS "jobs" (
    "id" INTEGER PRIMARY KEY AUTOINCREMENT,
    "payload" TEXT NOT NULL
);

-- publish :payload
INSERT INTO "jobs" ("payload") VALUES (?1);

-- publish with an id :id :payload
INSERT INTO "jobs" ("id", "payload") VALUES (?1, ?2);

-- due :now
SELECT min(a) - ?1, min(a) FILTER (WHERE a > ?1) - ?1 FROM (SELECT a FROM (SELECT 0 AS a FROM "jobs" AS t WHERE 1 = 1 ORDER BY t."id" LIMIT 1000));

-- candidates :held :limit
SELECT t."id" AS a, coalesce(CAST(t."id" AS TEXT), '') AS b FROM "jobs" AS t WHERE 1 = 1 AND coalesce(CAST(t."id" AS TEXT), '') NOT IN (SELECT value FROM json_each(?1)) ORDER BY t."id" LIMIT ?2;

-- take :id
SELECT "id", "payload" FROM "jobs" WHERE "id" = ?1 AND 1 = 1;

-- ack :id
DELETE FROM "jobs" WHERE "id" = ?1;

-- drop :id
DELETE FROM "jobs" WHERE "id" = ?1;

-- confirm :id
UPDATE "jobs" SET "id" = "id" WHERE "id" = ?1;

