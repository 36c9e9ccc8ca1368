-- The census: how things stand, for monitors.

-- name: census_queues(most)
-- How many runs are ready in each queue, `most` at most, and for how many microseconds its first run has been. All of them
-- are counted, along an index that has nothing else. Suspects stand in no lane, and are counted apart.
SELECT queue, LEAST(:most, count(*)) AS ready, {now} * 1000 - min(place) AS oldest
FROM {runs} {index runs_ready} WHERE place IS NOT NULL AND losses < 2 GROUP BY queue
UNION ALL
SELECT queue, count(*), {now} * 1000 - min(place)
FROM (SELECT queue, place FROM {runs} WHERE place IS NOT NULL AND losses >= 2 LIMIT :most) AS suspects GROUP BY queue;
