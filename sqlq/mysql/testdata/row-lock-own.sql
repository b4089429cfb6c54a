-- publish :group :delay :delay :priority :payload
INSERT INTO `own ``jobs``` (`kind`, `try`, `due`, `level`, `body`) VALUES (?, 1, LEAST(((NOW(6) + INTERVAL (? + 999) MICROSECOND) - INTERVAL (MICROSECOND((NOW(6) + INTERVAL (? + 999) MICROSECOND)) % 1000) MICROSECOND), CAST('2038-01-18 00:00:00' AS DATETIME(6))), ?, ?);

-- publish with an id :id :group :delay :delay :priority :payload
INSERT INTO `own ``jobs``` (`uuid`, `kind`, `try`, `due`, `level`, `body`) VALUES (?, ?, 1, LEAST(((NOW(6) + INTERVAL (? + 999) MICROSECOND) - INTERVAL (MICROSECOND((NOW(6) + INTERVAL (? + 999) MICROSECOND)) % 1000) MICROSECOND), CAST('2038-01-18 00:00:00' AS DATETIME(6))), ?, ?);

-- due :group :group :group :group
SELECT MIN(settle_a), MIN(CASE WHEN settle_a > 0 THEN settle_a END) FROM (SELECT settle_a FROM (SELECT 0 AS settle_a, t.`try` IS NULL AS settle_row FROM `own ``jobs``` AS t WHERE t.`kind` = ? AND (t.`due` IS NULL OR t.`due` <= NOW(6)) ORDER BY t.`level` DESC, t.`due`, t.`uuid` LIMIT 1000) AS l0 UNION ALL SELECT settle_a FROM (WITH RECURSIVE settle_levels (p) AS (SELECT (SELECT MAX(t.`level`) FROM `own ``jobs``` AS t WHERE t.`kind` = ?) UNION ALL SELECT (SELECT MAX(t.`level`) FROM `own ``jobs``` AS t WHERE t.`kind` = ? AND t.`level` < o.p) FROM settle_levels AS o WHERE o.p IS NOT NULL) SELECT (SELECT TIMESTAMPDIFF(MICROSECOND, NOW(6), t.`due`) FROM `own ``jobs``` AS t WHERE t.`kind` = ? AND t.`level` = v.p AND t.`due` > NOW(6) ORDER BY t.`due` LIMIT 1) AS settle_a FROM settle_levels AS v WHERE v.p IS NOT NULL) AS l1) AS a;

-- claim :group :limit
SELECT t.`uuid`, t.`body`, CAST(LEAST(GREATEST(COALESCE(t.`try`, 1), 1), 2147483647) AS SIGNED), COALESCE(CAST(UNIX_TIMESTAMP(t.`due`) * 1000000 AS SIGNED), -9223372036854775808), CAST(t.`level` AS SIGNED), CAST(CONNECTION_ID() AS CHAR) FROM `own ``jobs``` AS t WHERE t.`kind` = ? AND (t.`due` IS NULL OR t.`due` <= NOW(6)) ORDER BY t.`level` DESC, t.`due`, t.`uuid` LIMIT ? FOR UPDATE SKIP LOCKED;

-- claim of a full batch :group
SELECT t.`uuid`, t.`body`, CAST(LEAST(GREATEST(COALESCE(t.`try`, 1), 1), 2147483647) AS SIGNED), COALESCE(CAST(UNIX_TIMESTAMP(t.`due`) * 1000000 AS SIGNED), -9223372036854775808), CAST(t.`level` AS SIGNED), CAST(CONNECTION_ID() AS CHAR) FROM `own ``jobs``` AS t WHERE t.`kind` = ? AND (t.`due` IS NULL OR t.`due` <= NOW(6)) ORDER BY t.`level` DESC, t.`due`, t.`uuid` LIMIT 1 FOR UPDATE SKIP LOCKED;

-- lock again :id :group :attempt
SELECT t.`uuid`, CAST(CONNECTION_ID() AS CHAR) FROM `own ``jobs``` AS t WHERE t.`uuid` = ? AND t.`kind` = ? AND LEAST(GREATEST(COALESCE(t.`try`, 1), 1), 2147483647) = ? FOR UPDATE SKIP LOCKED;

-- count :id :group :attempt
UPDATE `own ``jobs``` AS o JOIN (SELECT t.`uuid` AS settle_id FROM `own ``jobs``` AS t WHERE t.`uuid` = ? AND t.`kind` = ? AND LEAST(GREATEST(COALESCE(t.`try`, 1), 1), 2147483647) = ? LIMIT 1 FOR UPDATE SKIP LOCKED) AS s ON o.`uuid` = s.settle_id SET o.`try` = LEAST(GREATEST(COALESCE(o.`try`, 1), 1), 254) + 1;

-- ack :id
DELETE FROM `own ``jobs``` WHERE `uuid` = ?;

-- ack many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci FOR UPDATE /*!80000 OF t */;
DELETE t FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci;

-- drop :id
DELETE FROM `own ``jobs``` WHERE `uuid` = ?;

-- drop many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci FOR UPDATE /*!80000 OF t */;
DELETE t FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci;

-- retry :cause :id
UPDATE `own ``jobs``` SET `try` = LEAST(GREATEST(COALESCE(`try`, 1), 1), 254) + 1, `why` = LEFT(?, 80) WHERE `uuid` = ?;

-- retry many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci SET `try` = LEAST(GREATEST(COALESCE(`try`, 1), 1), 254) + 1, `why` = LEFT(s.settle_cause, 80);

-- retryafter :delay :delay :cause :id
UPDATE `own ``jobs``` SET `try` = LEAST(GREATEST(COALESCE(`try`, 1), 1), 254) + 1, `due` = LEAST(((NOW(6) + INTERVAL (? + 999) MICROSECOND) - INTERVAL (MICROSECOND((NOW(6) + INTERVAL (? + 999) MICROSECOND)) % 1000) MICROSECOND), CAST('2038-01-18 00:00:00' AS DATETIME(6))), `why` = LEFT(?, 80) WHERE `uuid` = ?;

-- retryafter many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci SET `try` = LEAST(GREATEST(COALESCE(`try`, 1), 1), 254) + 1, `due` = LEAST(((NOW(6) + INTERVAL (s.settle_delay + 999) MICROSECOND) - INTERVAL (MICROSECOND((NOW(6) + INTERVAL (s.settle_delay + 999) MICROSECOND)) % 1000) MICROSECOND), CAST('2038-01-18 00:00:00' AS DATETIME(6))), `why` = LEFT(s.settle_cause, 80);

-- deadletter :dead :cause :id
UPDATE `own ``jobs``` SET `try` = LEAST(GREATEST(COALESCE(`try`, 1), 1), 254) + 1, `kind` = ?, `why` = LEFT(?, 80) WHERE `uuid` = ?;

-- deadletter many :rows :rows :dead
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci SET `try` = LEAST(GREATEST(COALESCE(`try`, 1), 1), 254) + 1, `kind` = ?, `why` = LEFT(s.settle_cause, 80);

-- committed :transaction
SELECT CASE WHEN EXISTS (SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = ?) THEN NULL ELSE 2 END;

