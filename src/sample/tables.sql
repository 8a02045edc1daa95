CREATE TABLE regions (
    region_id int PRIMARY KEY,
    name text NOT NULL,
    currency text NOT NULL
);
COMMENT ON TABLE regions IS 'Sales regions. Customers and employees belong to one.';
COMMENT ON COLUMN regions.currency IS 'ISO 4217 code that customers of the region see; all amounts in this database are in EUR.';

CREATE TABLE employees (
    employee_id int PRIMARY KEY,
    full_name text NOT NULL,
    title text NOT NULL,
    region_id int NOT NULL,
    manager_id int,
    hired_on date NOT NULL
);
COMMENT ON TABLE employees IS 'Sales and support staff.';
COMMENT ON COLUMN employees.title IS 'Regional manager, Sales representative or Support agent.';
COMMENT ON COLUMN employees.manager_id IS 'The employee they report to; null for regional managers.';

CREATE TABLE suppliers (
    supplier_id int PRIMARY KEY,
    name text NOT NULL,
    country text NOT NULL,
    lead_time_days int NOT NULL
);
COMMENT ON TABLE suppliers IS 'Who makes the products.';
COMMENT ON COLUMN suppliers.lead_time_days IS 'Days from a purchase order to its arrival.';

CREATE TABLE categories (
    category_id int PRIMARY KEY,
    name text NOT NULL
);
COMMENT ON TABLE categories IS 'Product categories.';

CREATE TABLE products (
    product_id int PRIMARY KEY,
    sku text NOT NULL UNIQUE,
    name text NOT NULL,
    category_id int NOT NULL,
    supplier_id int NOT NULL,
    list_price numeric(10, 2) NOT NULL,
    unit_cost numeric(10, 2) NOT NULL,
    launched_on date NOT NULL
);
COMMENT ON TABLE products IS 'What is sold.';
COMMENT ON COLUMN products.list_price IS 'EUR per unit before any discount.';
COMMENT ON COLUMN products.unit_cost IS 'EUR per unit paid to the supplier.';

CREATE TABLE customers (
    customer_id int PRIMARY KEY,
    name text NOT NULL,
    segment text NOT NULL CHECK (segment IN ('consumer', 'small business', 'enterprise')),
    email text NOT NULL,
    region_id int NOT NULL,
    created_on date NOT NULL
);
COMMENT ON TABLE customers IS 'Who buys. Invented people and companies.';
COMMENT ON COLUMN customers.segment IS 'consumer, small business or enterprise.';

CREATE TABLE orders (
    order_id int PRIMARY KEY,
    customer_id int NOT NULL,
    employee_id int,
    channel text NOT NULL CHECK (channel IN ('web', 'phone', 'partner')),
    status text NOT NULL CHECK (status IN ('delivered', 'cancelled', 'processing')),
    ordered_at timestamptz NOT NULL
);
COMMENT ON TABLE orders IS 'One row per order, 2024-01-01 to 2025-12-31 UTC.';
COMMENT ON COLUMN orders.employee_id IS 'The sales representative who took a phone order; null on other channels.';
COMMENT ON COLUMN orders.status IS 'delivered, cancelled (before shipment, not paid) or processing (not shipped yet).';

CREATE TABLE order_items (
    order_item_id int PRIMARY KEY,
    order_id int NOT NULL,
    line_number int NOT NULL,
    product_id int NOT NULL,
    quantity int NOT NULL CHECK (quantity > 0),
    unit_price numeric(10, 2) NOT NULL,
    discount_percent int NOT NULL CHECK (discount_percent BETWEEN 0 AND 100)
);
COMMENT ON TABLE order_items IS 'The lines of an order. Revenue of a line: quantity * unit_price * (100 - discount_percent) / 100.';
COMMENT ON COLUMN order_items.unit_price IS 'EUR per unit before the discount.';

CREATE TABLE shipments (
    shipment_id int PRIMARY KEY,
    order_id int NOT NULL UNIQUE,
    carrier text NOT NULL,
    shipped_at timestamptz NOT NULL,
    promised_on date NOT NULL,
    delivered_at timestamptz NOT NULL
);
COMMENT ON TABLE shipments IS 'One row per shipped order.';
COMMENT ON COLUMN shipments.promised_on IS 'The last day on which delivery was promised; later is late.';

CREATE TABLE payments (
    payment_id int PRIMARY KEY,
    order_id int NOT NULL,
    method text NOT NULL CHECK (method IN ('card', 'transfer', 'wallet')),
    status text NOT NULL CHECK (status IN ('captured', 'failed')),
    amount numeric(12, 2) NOT NULL,
    paid_at timestamptz NOT NULL
);
COMMENT ON TABLE payments IS 'Attempts to pay an order. An order should have one captured payment.';
COMMENT ON COLUMN payments.amount IS 'EUR.';
COMMENT ON COLUMN payments.status IS 'captured (money taken) or failed (none taken).';

CREATE TABLE returns (
    return_id int PRIMARY KEY,
    order_item_id int NOT NULL UNIQUE,
    quantity int NOT NULL CHECK (quantity > 0),
    reason text NOT NULL,
    returned_on date NOT NULL,
    refund_amount numeric(12, 2) NOT NULL
);
COMMENT ON TABLE returns IS 'Order lines that came back.';
COMMENT ON COLUMN returns.reason IS 'damaged, wrong item, changed mind, too late, leaks or defective.';

CREATE TABLE support_tickets (
    ticket_id int PRIMARY KEY,
    customer_id int NOT NULL,
    order_id int NOT NULL,
    agent_id int NOT NULL,
    subject text NOT NULL,
    priority text NOT NULL CHECK (priority IN ('low', 'normal', 'high')),
    opened_at timestamptz NOT NULL,
    closed_at timestamptz,
    satisfaction int CHECK (satisfaction BETWEEN 1 AND 5)
);
COMMENT ON TABLE support_tickets IS 'What customers asked about an order.';
COMMENT ON COLUMN support_tickets.agent_id IS 'The employee who handles it.';
COMMENT ON COLUMN support_tickets.closed_at IS 'Null while it is open.';
COMMENT ON COLUMN support_tickets.satisfaction IS '1 (bad) to 5 (good), given by the customer after closing; often null.';
