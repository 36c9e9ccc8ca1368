// Runs SQL for the published transport, on Postgres or on MariaDB.
import mysql from 'mysql2/promise';
import pg from 'pg';

export function executor(url) {
  return url.startsWith('mysql') ? overMysql(url) : overPostgres(url);
}

function overPostgres(url) {
  const pool = new pg.Pool({ connectionString: url, max: 5 });
  return {
    dialect: 'postgres',
    escapeId: (name) => `"${name}"`,
    query: async (sql, values) => (await pool.query(sql, values)).rows,
    transaction: async (work) => {
      const client = await pool.connect();
      try {
        await client.query('BEGIN');
        const done = await work({ query: async (sql, values) => (await client.query(sql, values)).rows });
        await client.query('COMMIT');
        return done;
      } catch (error) {
        await client.query('ROLLBACK');
        throw error;
      } finally {
        client.release();
      }
    },
    end: () => pool.end(),
  };
}

function overMysql(url) {
  const pool = mysql.createPool({ uri: url, connectionLimit: 5 });
  return {
    dialect: 'mysql',
    escapeId: (name) => `\`${name}\``,
    query: async (sql, values) => (await pool.query(sql, values))[0],
    transaction: async (work) => {
      const connection = await pool.getConnection();
      try {
        await connection.beginTransaction();
        const done = await work({ query: async (sql, values) => (await connection.query(sql, values))[0] });
        await connection.commit();
        return done;
      } catch (error) {
        await connection.rollback();
        throw error;
      } finally {
        connection.release();
      }
    },
    end: () => pool.end(),
  };
}
