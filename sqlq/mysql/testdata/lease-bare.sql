CREATE TABLE IF NOT EXISTS `jobs` (
    `id` BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    `locked_until` DATETIME(6),
    `payload` LONGBLOB NOT NULL
) ENGINE=InnoDB;

-- publish :payload
INSERT INTO `jobs` (`payload`) VALUES (?);

-- publish with an id :id :payload
INSERT INTO `jobs` (`id`, `payload`) VALUES (?, ?);

-- due :floor_id :floor_id
SELECT MIN(settle_a), MIN(CASE WHEN settle_a > 0 THEN settle_a END) FROM (SELECT settle_a FROM (SELECT COALESCE(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), t.`locked_until`), 0) AS settle_a, t.`locked_until` IS NULL AS settle_row FROM `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) WHERE 1 = 1 AND (? IS NULL OR t.`id` >= ?) ORDER BY t.`id` LIMIT 1000) AS l0) AS a;

-- claim :lease :floor_id :floor_id :limit
SELECT t.`id`, t.`payload`, CAST((UTC_TIMESTAMP(6) + INTERVAL (?) MICROSECOND) AS CHAR) FROM `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) WHERE 1 = 1 AND (? IS NULL OR t.`id` >= ?) AND (t.`locked_until` IS NULL OR t.`locked_until` <= UTC_TIMESTAMP(6)) ORDER BY t.`id` LIMIT ? FOR UPDATE SKIP LOCKED;

-- mark :token :ids
UPDATE `jobs` SET `locked_until` = ? WHERE `id` IN ?;

-- renew :next_token :id :token
UPDATE `jobs` SET `locked_until` = ? WHERE `id` = ? AND `locked_until` = ?;

-- renew many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) SET `locked_until` = CAST(s.settle_next_token AS DATETIME(6));

-- holding :rows :rows
SELECT m.settle_n, f.settle_n IS NOT NULL FROM (SELECT s.settle_n - 1 AS settle_n FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) LIMIT 1000000) AS m LEFT JOIN (SELECT s.settle_n - 1 AS settle_n FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) LIMIT 1000000 FOR UPDATE /*!80000 OF t */ SKIP LOCKED) AS f ON f.settle_n = m.settle_n;

-- holding :rows :rows
SELECT m.settle_n, f.settle_n IS NOT NULL FROM (SELECT s.settle_n - 1 AS settle_n FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) LIMIT 1000000) AS m LEFT JOIN (SELECT s.settle_n - 1 AS settle_n FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) LIMIT 1000000 FOR UPDATE /*!80000 OF t */ SKIP LOCKED) AS f ON f.settle_n = m.settle_n;

-- ack :id :token
DELETE FROM `jobs` WHERE `id` = ? AND `locked_until` = ?;

-- ack many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
DELETE t FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6));

-- drop :id :token
DELETE FROM `jobs` WHERE `id` = ? AND `locked_until` = ?;

-- drop many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
DELETE t FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6));

-- retry :id :token
UPDATE `jobs` SET `locked_until` = NULL WHERE `id` = ? AND `locked_until` = ?;

-- retry many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) SET `locked_until` = NULL;

-- retryafter :id :token
UPDATE `jobs` SET `locked_until` = NULL WHERE `id` = ? AND `locked_until` = ?;

-- retryafter many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) SET `locked_until` = NULL;

-- release :id :token
UPDATE `jobs` SET `locked_until` = NULL WHERE `id` = ? AND `locked_until` = ?;

-- release many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) SET `locked_until` = NULL;

-- free :id :token
UPDATE `jobs` SET `locked_until` = NULL WHERE `id` = ? AND `locked_until` = ?;

-- free many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) FOR UPDATE /*!80000 OF t */;
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id AND t.`locked_until` = CAST(s.settle_token AS DATETIME(6)) SET `locked_until` = NULL;

-- committed :transaction
SELECT CASE WHEN EXISTS (SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = ?) THEN NULL ELSE 2 END;

