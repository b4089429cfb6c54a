-- publish :group :delay :delay :priority :payload
INSERT INTO `own ``jobs``` (`kind`, `try`, `due`, `level`, `body`) VALUES (?, 1, LEAST(((NOW(6) + INTERVAL (? + 999) MICROSECOND) - INTERVAL (MICROSECOND((NOW(6) + INTERVAL (? + 999) MICROSECOND)) % 1000) MICROSECOND), CAST('2038-01-18 00:00:00' AS DATETIME(6))), ?, ?);

-- publish with an id :id :group :delay :delay :priority :payload
INSERT INTO `own ``jobs``` (`uuid`, `kind`, `try`, `due`, `level`, `body`) VALUES (?, ?, 1, LEAST(((NOW(6) + INTERVAL (? + 999) MICROSECOND) - INTERVAL (MICROSECOND((NOW(6) + INTERVAL (? + 999) MICROSECOND)) % 1000) MICROSECOND), CAST('2038-01-18 00:00:00' AS DATETIME(6))), ?, ?);

-- due :group :group :group :group
SELECT MIN(settle_a), MIN(CASE WHEN settle_a > 0 THEN settle_a END) FROM (SELECT settle_a FROM (SELECT COALESCE(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), t.`lock`), 0) AS settle_a, t.`try` IS NULL AS settle_row FROM `own ``jobs``` AS t WHERE t.`kind` = ? AND (t.`due` IS NULL OR t.`due` <= NOW(6)) ORDER BY t.`level` DESC, t.`due`, t.`uuid` LIMIT 1000) AS l0 UNION ALL SELECT settle_a FROM (WITH RECURSIVE settle_levels (p) AS (SELECT (SELECT MAX(t.`level`) FROM `own ``jobs``` AS t WHERE t.`kind` = ?) UNION ALL SELECT (SELECT MAX(t.`level`) FROM `own ``jobs``` AS t WHERE t.`kind` = ? AND t.`level` < o.p) FROM settle_levels AS o WHERE o.p IS NOT NULL) SELECT (SELECT TIMESTAMPDIFF(MICROSECOND, NOW(6), t.`due`) FROM `own ``jobs``` AS t WHERE t.`kind` = ? AND t.`level` = v.p AND t.`due` > NOW(6) ORDER BY t.`due` LIMIT 1) AS settle_a FROM settle_levels AS v WHERE v.p IS NOT NULL) AS l1) AS a;

-- claim :lease :lease :group :limit
SELECT t.`uuid`, t.`body`, CAST(LEAST(GREATEST(COALESCE(t.`try`, 1), 1), 254) + 1 AS SIGNED), CAST(((UTC_TIMESTAMP(6) + INTERVAL (? + 999999) MICROSECOND) - INTERVAL (MICROSECOND((UTC_TIMESTAMP(6) + INTERVAL (? + 999999) MICROSECOND)) % 1000000) MICROSECOND) AS CHAR), COALESCE(CAST(UNIX_TIMESTAMP(t.`due`) * 1000000 AS SIGNED), -9223372036854775808), CAST(t.`level` AS SIGNED) FROM `own ``jobs``` AS t WHERE t.`kind` = ? AND (t.`due` IS NULL OR t.`due` <= NOW(6)) AND (t.`lock` IS NULL OR t.`lock` <= UTC_TIMESTAMP(6)) ORDER BY t.`level` DESC, t.`due`, t.`uuid` LIMIT ? FOR UPDATE SKIP LOCKED;

-- mark :token :ids
UPDATE `own ``jobs``` SET `try` = LEAST(GREATEST(COALESCE(`try`, 1), 1), 254) + 1, `lock` = ? WHERE `uuid` IN ?;

-- renew :next_token :id :attempt :token
UPDATE `own ``jobs``` SET `lock` = ? WHERE `uuid` = ? AND `try` = ? AND `lock` = ?;

-- renew many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6)) SET `lock` = CAST(s.settle_next_token AS DATETIME(6));

-- holding :rows :rows
SELECT m.settle_n, f.settle_n IS NOT NULL FROM (SELECT s.settle_n - 1 AS settle_n FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6)) LIMIT 1000000) AS m LEFT JOIN (SELECT s.settle_n - 1 AS settle_n FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6)) LIMIT 1000000 FOR UPDATE /*!80000 OF t */ SKIP LOCKED) AS f ON f.settle_n = m.settle_n;

-- holding :rows :rows
SELECT m.settle_n, f.settle_n IS NOT NULL FROM (SELECT s.settle_n - 1 AS settle_n FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6)) LIMIT 1000000) AS m LEFT JOIN (SELECT s.settle_n - 1 AS settle_n FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6)) LIMIT 1000000 FOR UPDATE /*!80000 OF t */ SKIP LOCKED) AS f ON f.settle_n = m.settle_n;

-- ack :id :attempt :token
DELETE FROM `own ``jobs``` WHERE `uuid` = ? AND `try` = ? AND `lock` = ?;

-- ack many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
DELETE t FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6));

-- drop :id :attempt :token
DELETE FROM `own ``jobs``` WHERE `uuid` = ? AND `try` = ? AND `lock` = ?;

-- drop many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
DELETE t FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6));

-- retry :cause :id :attempt :token
UPDATE `own ``jobs``` SET `lock` = NULL, `why` = LEFT(?, 80) WHERE `uuid` = ? AND `try` = ? AND `lock` = ?;

-- retry many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6)) SET `lock` = NULL, `why` = LEFT(s.settle_cause, 80);

-- retryafter :delay :delay :cause :id :attempt :token
UPDATE `own ``jobs``` SET `due` = LEAST(((NOW(6) + INTERVAL (? + 999) MICROSECOND) - INTERVAL (MICROSECOND((NOW(6) + INTERVAL (? + 999) MICROSECOND)) % 1000) MICROSECOND), CAST('2038-01-18 00:00:00' AS DATETIME(6))), `lock` = NULL, `why` = LEFT(?, 80) WHERE `uuid` = ? AND `try` = ? AND `lock` = ?;

-- retryafter many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6)) SET `due` = LEAST(((NOW(6) + INTERVAL (s.settle_delay + 999) MICROSECOND) - INTERVAL (MICROSECOND((NOW(6) + INTERVAL (s.settle_delay + 999) MICROSECOND)) % 1000) MICROSECOND), CAST('2038-01-18 00:00:00' AS DATETIME(6))), `lock` = NULL, `why` = LEFT(s.settle_cause, 80);

-- deadletter :dead :cause :id :attempt :token
UPDATE `own ``jobs``` SET `kind` = ?, `lock` = NULL, `why` = LEFT(?, 80) WHERE `uuid` = ? AND `try` = ? AND `lock` = ?;

-- deadletter many :rows :rows :dead
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6)) SET `kind` = ?, `lock` = NULL, `why` = LEFT(s.settle_cause, 80);

-- release :attempt :id :attempt :token
UPDATE `own ``jobs``` SET `try` = ? - 1, `lock` = NULL WHERE `uuid` = ? AND `try` = ? AND `lock` = ?;

-- release many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6)) SET `try` = s.settle_attempt - 1, `lock` = NULL;

-- free :id :attempt :token
UPDATE `own ``jobs``` SET `lock` = NULL WHERE `uuid` = ? AND `try` = ? AND `lock` = ?;

-- free many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `own ``jobs``` AS t ON t.`uuid` = CONVERT(s.settle_id USING latin1) COLLATE latin1_swedish_ci AND t.`try` = s.settle_attempt AND t.`lock` = CAST(s.settle_token AS DATETIME(6)) SET `lock` = NULL;

-- committed :transaction
SELECT CASE WHEN EXISTS (SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = ?) THEN NULL ELSE 2 END;

