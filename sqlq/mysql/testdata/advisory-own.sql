-- publish :group :delay :delay :priority :payload
INSERT INTO `own ``jobs``` (`kind`, `try`, `due`, `level`, `body`) VALUES (?, 1, LEAST(((NOW(6) + INTERVAL (? + 999) MICROSECOND) - INTERVAL (MICROSECOND((NOW(6) + INTERVAL (? + 999) MICROSECOND)) % 1000) MICROSECOND), CAST('2038-01-18 00:00:00' AS DATETIME(6))), ?, ?);

-- publish with an id :id :group :delay :delay :priority :payload
INSERT INTO `own ``jobs``` (`uuid`, `kind`, `try`, `due`, `level`, `body`) VALUES (?, ?, 1, LEAST(((NOW(6) + INTERVAL (? + 999) MICROSECOND) - INTERVAL (MICROSECOND((NOW(6) + INTERVAL (? + 999) MICROSECOND)) % 1000) MICROSECOND), CAST('2038-01-18 00:00:00' AS DATETIME(6))), ?, ?);

-- due :group :group :group :group
SELECT MIN(settle_a), MIN(CASE WHEN settle_a > 0 THEN settle_a END) FROM (SELECT settle_a FROM (SELECT 0 AS settle_a, t.`try` IS NULL AS settle_row FROM `own ``jobs``` AS t WHERE t.`kind` = ? AND (t.`due` IS NULL OR t.`due` <= NOW(6)) ORDER BY t.`level` DESC, t.`due`, t.`uuid` LIMIT 1000) AS l0 UNION ALL SELECT settle_a FROM (WITH RECURSIVE settle_levels (p) AS (SELECT (SELECT MAX(t.`level`) FROM `own ``jobs``` AS t WHERE t.`kind` = ?) UNION ALL SELECT (SELECT MAX(t.`level`) FROM `own ``jobs``` AS t WHERE t.`kind` = ? AND t.`level` < o.p) FROM settle_levels AS o WHERE o.p IS NOT NULL) SELECT (SELECT TIMESTAMPDIFF(MICROSECOND, NOW(6), t.`due`) FROM `own ``jobs``` AS t WHERE t.`kind` = ? AND t.`level` = v.p AND t.`due` > NOW(6) ORDER BY t.`due` LIMIT 1) AS settle_a FROM settle_levels AS v WHERE v.p IS NOT NULL) AS l1) AS a;

-- candidates :group :held :scan :scan :limit
SELECT r.settle_a, r.settle_b FROM (SELECT q.settle_a, q.settle_b, q.settle_n FROM (SELECT p.*, ROW_NUMBER() OVER (PARTITION BY p.settle_b ORDER BY p.settle_n) AS settle_first FROM (SELECT c.*, ROW_NUMBER() OVER () AS settle_n FROM (SELECT t.`uuid` AS settle_a, CONCAT('settle:', SHA2(CONCAT(CAST(DATABASE() AS BINARY), '/key/', CONCAT(COALESCE(CAST('jobs-' AS BINARY), ''), COALESCE(CAST(t.`uuid` AS BINARY), ''))), 224)) AS settle_b, t.`try` IS NULL AS settle_row FROM `own ``jobs``` AS t WHERE t.`kind` = ? AND (t.`due` IS NULL OR t.`due` <= NOW(6)) AND (CONCAT('settle:', SHA2(CONCAT(CAST(DATABASE() AS BINARY), '/key/', CONCAT(COALESCE(CAST('jobs-' AS BINARY), ''), COALESCE(CAST(t.`uuid` AS BINARY), ''))), 224)) IN ?) IS NOT TRUE ORDER BY t.`level` DESC, t.`due`, t.`uuid` LIMIT ?) AS c) AS p) AS q WHERE q.settle_first = 1 ORDER BY q.settle_n LIMIT ?) AS r WHERE GET_LOCK(r.settle_b, 0) = 1 LIMIT ?;

-- take :ids :group :ids :group
UPDATE `own ``jobs``` AS t SET t.`try` = LEAST(GREATEST(COALESCE(t.`try`, 1), 1), 254) + 1 WHERE t.`uuid` IN ? AND t.`kind` = ? AND (t.`due` IS NULL OR t.`due` <= NOW(6));
SELECT t.`uuid`, t.`body`, CAST(LEAST(GREATEST(COALESCE(t.`try`, 1), 1), 2147483647) AS SIGNED), COALESCE(CAST(UNIX_TIMESTAMP(t.`due`) * 1000000 AS SIGNED), -9223372036854775808), CAST(t.`level` AS SIGNED) FROM `own ``jobs``` AS t WHERE t.`uuid` IN ? AND t.`kind` = ? AND (t.`due` IS NULL OR t.`due` <= NOW(6));

-- unlock :lock
SELECT RELEASE_LOCK(?);

-- ack :id :attempt
DELETE FROM `own ``jobs``` WHERE `uuid` = ? AND `try` = ?;

-- ack many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt FOR UPDATE /*!80000 OF t */;
DELETE t FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt;

-- drop :id :attempt
DELETE FROM `own ``jobs``` WHERE `uuid` = ? AND `try` = ?;

-- drop many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt FOR UPDATE /*!80000 OF t */;
DELETE t FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt;

-- retry :cause :id :attempt
UPDATE `own ``jobs``` SET `why` = LEFT(?, 80) WHERE `uuid` = ? AND `try` = ?;

-- retry many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt SET `why` = LEFT(s.settle_cause, 80);

-- retryafter :delay :delay :cause :id :attempt
UPDATE `own ``jobs``` SET `due` = LEAST(((NOW(6) + INTERVAL (? + 999) MICROSECOND) - INTERVAL (MICROSECOND((NOW(6) + INTERVAL (? + 999) MICROSECOND)) % 1000) MICROSECOND), CAST('2038-01-18 00:00:00' AS DATETIME(6))), `why` = LEFT(?, 80) WHERE `uuid` = ? AND `try` = ?;

-- retryafter many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt SET `due` = LEAST(((NOW(6) + INTERVAL (s.settle_delay + 999) MICROSECOND) - INTERVAL (MICROSECOND((NOW(6) + INTERVAL (s.settle_delay + 999) MICROSECOND)) % 1000) MICROSECOND), CAST('2038-01-18 00:00:00' AS DATETIME(6))), `why` = LEFT(s.settle_cause, 80);

-- deadletter :dead :cause :id :attempt
UPDATE `own ``jobs``` SET `kind` = ?, `why` = LEFT(?, 80) WHERE `uuid` = ? AND `try` = ?;

-- deadletter many :rows :rows :dead
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt SET `kind` = ?, `why` = LEFT(s.settle_cause, 80);

-- release :attempt :id :attempt
UPDATE `own ``jobs``` SET `try` = ? - 1 WHERE `uuid` = ? AND `try` = ?;

-- release many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt SET `try` = s.settle_attempt - 1;

-- committed :transaction
SELECT CASE WHEN EXISTS (SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = ?) THEN NULL ELSE 2 END;

