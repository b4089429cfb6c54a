CREATE TABLE IF NOT EXISTS `jobs` (
    `id` BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    `payload` LONGBLOB NOT NULL
) ENGINE=InnoDB;

-- publish :payload
INSERT INTO `jobs` (`payload`) VALUES (?);

-- publish with an id :id :payload
INSERT INTO `jobs` (`id`, `payload`) VALUES (?, ?);

-- due :floor_id :floor_id
SELECT MIN(settle_a), MIN(CASE WHEN settle_a > 0 THEN settle_a END) FROM (SELECT settle_a FROM (SELECT 0 AS settle_a, t.`payload` IS NULL AS settle_row FROM `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) WHERE 1 = 1 AND (? IS NULL OR t.`id` >= ?) ORDER BY t.`id` LIMIT 1000) AS l0) AS a;

-- candidates :floor_id :floor_id :held :scan :scan :limit
SELECT r.settle_a, r.settle_b FROM (SELECT q.settle_a, q.settle_b, q.settle_n FROM (SELECT p.*, ROW_NUMBER() OVER (PARTITION BY p.settle_b ORDER BY p.settle_n) AS settle_first FROM (SELECT c.*, ROW_NUMBER() OVER () AS settle_n FROM (SELECT t.`id` AS settle_a, CONCAT('settle:', SHA2(CONCAT(CAST(DATABASE() AS BINARY), '/key/', CONCAT(COALESCE(CAST('jobs-' AS BINARY), ''), COALESCE(CAST(t.`id` AS BINARY), ''))), 224)) AS settle_b, t.`payload` IS NULL AS settle_row FROM `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) WHERE 1 = 1 AND (? IS NULL OR t.`id` >= ?) AND (CONCAT('settle:', SHA2(CONCAT(CAST(DATABASE() AS BINARY), '/key/', CONCAT(COALESCE(CAST('jobs-' AS BINARY), ''), COALESCE(CAST(t.`id` AS BINARY), ''))), 224)) IN ?) IS NOT TRUE ORDER BY t.`id` LIMIT ?) AS c) AS p) AS q WHERE q.settle_first = 1 ORDER BY q.settle_n LIMIT ?) AS r WHERE GET_LOCK(r.settle_b, 0) = 1 LIMIT ?;

-- take :ids
SELECT t.`id`, t.`payload` FROM `jobs` AS t WHERE t.`id` IN ? AND 1 = 1;

-- unlock :lock
SELECT RELEASE_LOCK(?);

-- ack :id
DELETE FROM `jobs` WHERE `id` = ?;

-- ack many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id FOR UPDATE /*!80000 OF t */;
DELETE t FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id;

-- drop :id
DELETE FROM `jobs` WHERE `id` = ?;

-- drop many :rows :rows
SELECT s.settle_n - 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id FOR UPDATE /*!80000 OF t */;
DELETE t FROM JSON_TABLE(?, '$[*]' COLUMNS (settle_n FOR ORDINALITY, settle_id BIGINT PATH '$[0]', settle_attempt BIGINT PATH '$[1]', settle_token VARCHAR(32) PATH '$[2]', settle_delay BIGINT PATH '$[3]', settle_cause TEXT CHARACTER SET utf8mb4 PATH '$[4]', settle_next_token VARCHAR(32) PATH '$[5]')) AS s STRAIGHT_JOIN `jobs` AS t FORCE INDEX FOR JOIN (`PRIMARY`) ON t.`id` = s.settle_id;

-- committed :transaction
SELECT CASE WHEN EXISTS (SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = ?) THEN NULL ELSE 2 END;

